"""Decides which layers go to which stage of a pipeline, so that the slowest stage is as fast as can be.

The search is exact. Let t(k, j) be the time of the slowest of the first k stages when they hold the
first j layers; then t(k, j) is the least over i of max(t(k-1, i), time of layers i to j-1), among the i
for which those layers fit the memory of stage k.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from colonnade.errors import Problem
from colonnade.reason.schedules.schedule import SCHEDULES, Schedule, alive

MIB = 2**20


@dataclass(frozen=True)
class Layer:
    """What a layer costs: time for one micro-batch, and bytes."""

    name: str
    seconds: float
    kept: int = 0  # parameters, their gradients and what the optimizer adds
    activations: int = 0  # of one micro-batch, until it comes back
    working: int = 0  # more, while the layer is at work
    parameters: int = 0  # bytes; a part of what is kept
    output: int = 0  # bytes that it gives, of one micro-batch


@dataclass(frozen=True)
class Room:
    """What a stage has: bytes, or None without a limit, and how many micro-batches it keeps at once."""

    device: str
    limit: int | None = None
    alive: int = 1

    def needs(self, layers: Sequence[Layer]) -> int:
        held = sum(layer.kept + self.alive * layer.activations for layer in layers)
        return held + max((layer.working for layer in layers), default=0)

    def fits(self, layers: Sequence[Layer]) -> bool:
        return self.limit is None or self.needs(layers) <= self.limit


def place(layers: Sequence[Layer], rooms: Sequence[Room]) -> tuple[int, ...] | None:
    """The stage of every layer, or None where no cut into as many stages as there are rooms fits.

    Example:
        >>> layers = [Layer("a", 1.0), Layer("b", 1.0), Layer("c", 4.0), Layer("d", 2.0)]
        >>> place(layers, [Room("CPU:0"), Room("CPU:1")])
        (0, 0, 1, 1)
        >>> place(layers, [Room("CPU:0"), Room("CPU:1"), Room("CPU:2")])
        (0, 0, 1, 2)
    """

    def cost(stage: int, part: Sequence[Layer]) -> float:
        return sum(layer.seconds for layer in part) if rooms[stage].fits(part) else float("inf")

    worst, cuts = _best(layers, len(rooms), cost)
    return None if worst == float("inf") else cuts


def least_limit(layers: Sequence[Layer], rooms: Sequence[Room]) -> int:
    """The smallest limit, the same on every device, under which the layers fit these devices.

    Example:
        >>> layers = [Layer(name, 1.0, kept=size) for name, size in (("a", 5), ("b", 3), ("c", 4))]
        >>> least_limit(layers, [Room("CPU:0"), Room("CPU:1")])
        7
    """
    return int(_best(layers, len(rooms), lambda stage, part: rooms[stage].needs(part))[0])


def rooms_of(
    devices: Sequence[str], limits: Sequence[int | None], schedule: Schedule, num_micro_batches: int
) -> list[Room]:
    """What the stages on these devices have, with the micro-batches that a schedule keeps alive."""
    kept = alive(schedule(len(devices), num_micro_batches))
    return [Room(*one) for one in zip(devices, limits, kept, strict=True)]


def misfits(
    layers: Sequence[Layer], rooms: Sequence[Room], schedule: Schedule, num_micro_batches: int
) -> Iterator[Problem]:
    """Why layers fit nowhere: what each needs, what each device has, what would make it fit."""
    for layer in layers:
        each = f"{_mib(layer.activations)} per micro-batch"
        needed = f"needs {_mib(layer.kept)}, {each} and {_mib(layer.working)} at work (an estimate)"
        alone = [room for room in rooms if room.fits([layer])]
        where = f"fits alone on {', '.join(r.device for r in alone)}" if alone else "fits on no device"
        yield Problem("layer", layer.name, f"{needed}; {where}", "See below")
    have = ", ".join(f"{room.device} {_mib(room.limit)}" for room in rooms if room.limit is not None)
    rule = f"no cut between layers fits the limits ({have})"
    ways = [
        f"raise the limit to {-(-least_limit(layers, rooms) // MIB)} MiB on each device",
        *_more_devices(layers, rooms, schedule, num_micro_batches),
        *_another_schedule(layers, rooms, schedule, num_micro_batches),
        *_smaller_micro_batches(layers, rooms, schedule, num_micro_batches),
    ]
    yield Problem("devices", len(rooms), rule, "To make it fit: " + ", or ".join(ways))


def _again(rooms: Sequence[Room], number: int, schedule: Schedule, num_micro_batches: int) -> list[Room]:
    """The rooms of so many devices, further ones like the last; more stages keep more alive."""
    all_of = [*rooms, *[rooms[-1]] * (number - len(rooms))]
    return rooms_of([r.device for r in all_of], [r.limit for r in all_of], schedule, num_micro_batches)


def _more_devices(
    layers: Sequence[Layer], rooms: Sequence[Room], schedule: Schedule, num_micro_batches: int
) -> Iterator[str]:
    for number in range(len(rooms) + 1, len(layers) + 1):
        if place(layers, _again(rooms, number, schedule, num_micro_batches)) is not None:
            yield f"take {number} devices"
            return


def _another_schedule(
    layers: Sequence[Layer], rooms: Sequence[Room], schedule: Schedule, num_micro_batches: int
) -> Iterator[str]:
    others = [name for name in ("1f1b", "sequential") if SCHEDULES[name] is not schedule]
    for name in others:
        if place(layers, _again(rooms, len(rooms), SCHEDULES[name], num_micro_batches)) is not None:
            yield f'schedule="{name}"'
            return


def _smaller_micro_batches(
    layers: Sequence[Layer], rooms: Sequence[Room], schedule: Schedule, num_micro_batches: int
) -> Iterator[str]:
    for factor in (2, 4, 8):
        smaller = [
            replace(one, activations=one.activations // factor, working=one.working // factor)
            for one in layers
        ]
        number = factor * num_micro_batches
        if place(smaller, _again(rooms, len(rooms), schedule, number)) is not None:
            yield f"micro_batches={number}"
            return


def _best(
    layers: Sequence[Layer], num_stages: int, cost: Callable[[int, Sequence[Layer]], float]
) -> tuple[float, tuple[int, ...]]:
    """The cut into stages whose largest cost is least, and that cost."""
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(num_stages):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in range(stage + 1, len(layers) - (num_stages - 1 - stage) + 1):
            candidates = [
                (max(worst, cost(stage, layers[begin:end])), (*cuts, *[stage] * (end - begin)))
                for begin, (worst, cuts) in best.items()
                if begin < end
            ]
            longer[end] = min(candidates, key=lambda one: one[0])
        best = longer
    return best[len(layers)]


def _mib(size: int | None) -> str:
    return f"{(size or 0) / MIB:.1f} MiB"
