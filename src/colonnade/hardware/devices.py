"""One call owns the machine: which devices TensorFlow sees, how they are divided, what they may take.

A request is checked against the cards of the machine and becomes a `Layout`, which is plain data;
only then is TensorFlow told. So nothing is half set when a request is refused.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import tensorflow as tf

from colonnade.errors import AlreadyStarted, InvalidArgument, Problem, check
from colonnade.hardware import cards as nvml
from colonnade.hardware import gpu
from colonnade.hardware.cards import Card

# A divided card keeps this part of its memory for CUDA itself, unless the user names a limit.
DIVIDED_FRACTION = 0.9


@dataclass(frozen=True)
class Request:
    """What the user asked of `setup`."""

    devices: int | tuple[int | str, ...] | None = None
    virtual: int | None = None
    memory: float | None = None
    growth: bool | None = None
    soft_placement: bool = True
    threads: int | tuple[int, int] | None = None

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        return (
            f"setup({', '.join(f'{name}={value!r}' for name, value, default in given if value != default)})"
        )


@dataclass(frozen=True)
class Layout:
    """What TensorFlow is told: the physical devices it may use, and how each is divided."""

    kind: str  # CPU or GPU
    visible: tuple[int, ...]  # positions in TensorFlow's list of physical devices of that kind
    parts: tuple[tuple[int | None, ...], ...]  # for each of them, the limit in MiB of each part
    growth: bool


_done: Request | None = None  # the request that TensorFlow was started with, if there was one


def setup(
    devices: int | Sequence[int | str] | None = None,
    *,
    virtual: int | None = None,
    memory: float | None = None,
    growth: bool | None = None,
    soft_placement: bool = True,
    threads: int | tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """Choose the devices of this process; call it once, before TensorFlow computes anything.

    Args:
        devices: how many cards, or which: positions in PCI bus order, or UUIDs. All by default.
        virtual: divide the CPU, or the one card that `devices` names, into that many devices.
        memory: what each device may take of its card: a fraction (0.9) or MiB (4096).
        growth: take memory as it is needed; with `memory`, up to that limit.
        soft_placement: let an op without a kernel for its device run on the CPU.
        threads: threads inside an op and between ops: one number for both, or a pair.

    Under `colonnade run`, `virtual` and `memory` are by default what was leased.

    Returns:
        The device strings to compute on, for `devices=` anywhere in Colonnade.

    Example:
        >>> import colonnade as cn
        >>> cn.setup(virtual=8)[:2]
        ('/device:CPU:0', '/device:CPU:1')
    """
    global _done
    gpu.use_bus_order(os.environ)
    wanted = devices if devices is None or isinstance(devices, int) else tuple(devices)
    request = leased(Request(wanted, virtual, memory, growth, soft_placement, threads), os.environ)
    layout = plan(request, visible_cards())
    if started():
        _refuse_changes(request)
    else:
        _tell_tensorflow(layout, request)
        _done = request
    tf.config.set_soft_device_placement(soft_placement)
    # Starting the devices here and not at the first tensor settles them: a second, different
    # setup() is refused, whether or not anything was computed in between.
    return tuple(device.name for device in tf.config.list_logical_devices(layout.kind))


def leased(request: Request, environment: Mapping[str, str]) -> Request:
    """A request with what `colonnade run` leased in place of what the program left open."""
    problems: list[Problem] = []

    def read(variable: str, parse: Callable[[str], float], rule: str) -> float | None:
        text = environment.get(variable)
        try:
            value = None if text is None else parse(text)
        except ValueError:
            value = 0
        if value is not None and not value > 0:
            problems.append(Problem(variable, text, rule, "Unset it; colonnade run sets it"))
            return None
        return value

    if request.virtual is None:
        count = read(gpu.SETUP_VIRTUAL, int, "must be a whole number from 1 up")
        request = replace(request, virtual=None if count is None else int(count))
    if request.memory is None:
        share = read(gpu.SETUP_MEMORY, float, "must be a fraction of a card (0.9) or MiB (4096), and above 0")
        # The share is one card's, whatever number of devices the program makes of it.
        parts = request.virtual if _is_count(request.virtual) and request.virtual else 1
        request = replace(request, memory=None if share is None else share / parts)
    check("the environment of setup()", problems)
    return request


def plan(request: Request, cards: Sequence[Card]) -> Layout:
    """Check a request against the cards of the machine; all that is wrong comes in one error."""
    check("setup()", _problems(request, cards))
    if not cards:
        return Layout("CPU", (0,), ((None,) * (request.virtual or 1),), growth=False)
    chosen = _chosen(request, cards)
    parts = request.virtual or 1
    limits = tuple((_limit(request, cards[i], parts),) * parts for i in chosen)
    return Layout("GPU", chosen, limits, growth=bool(request.growth))


def _chosen(request: Request, cards: Sequence[Card]) -> tuple[int, ...]:
    if request.devices is None:
        return (0,) if request.virtual else tuple(range(len(cards)))
    if isinstance(request.devices, int):
        return tuple(range(request.devices))
    by_uuid = {card.uuid: i for i, card in enumerate(cards)}
    return tuple(sorted(by_uuid[d] if isinstance(d, str) else d for d in request.devices))


def _limit(request: Request, card: Card, parts: int) -> int | None:
    """The limit in MiB of one of `parts` devices on a card."""
    if request.memory is None:
        return int(card.mib * DIVIDED_FRACTION) // parts if parts > 1 else None
    return int(card.mib * request.memory) if _is_fraction(request.memory) else int(request.memory)


def _is_fraction(memory: float) -> bool:
    return memory <= 1


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _problems(request: Request, cards: Sequence[Card]) -> Iterator[Problem]:
    wrong_devices = list(_device_problems(request, cards))
    yield from wrong_devices
    if request.virtual is not None and not _is_count(request.virtual):
        yield Problem("virtual", request.virtual, "must be a whole number from 1 up", "Try virtual=2")
    used = cards if wrong_devices else [cards[i] for i in _chosen(request, cards)] if cards else []
    yield from _memory_problems(request, used)
    if request.growth is not None and not isinstance(request.growth, bool):
        yield Problem("growth", request.growth, "must be True, False or None", "Try growth=True")
    if request.growth and not cards:
        yield Problem("growth", True, "is for cards, and this process sees none", "Leave it out")
    if not isinstance(request.soft_placement, bool):
        yield Problem("soft_placement", request.soft_placement, "must be True or False", "Leave it out")
    pair = request.threads if isinstance(request.threads, tuple) else (request.threads,) * 2
    if request.threads is not None and (len(pair) != 2 or not all(map(_is_count, pair))):
        rule = "must be a whole number from 1 up, or a pair of them (inside an op, between ops)"
        yield Problem("threads", request.threads, rule, "Try threads=2 or threads=(1, 2)")


def _device_problems(request: Request, cards: Sequence[Card]) -> Iterator[Problem]:
    devices, have = request.devices, _have(cards)
    count = len(cards) or 1
    if devices is None:
        return
    if isinstance(devices, int):
        if not _is_count(devices):
            yield Problem(
                "devices", devices, "a count must be a whole number from 1 up", "Leave it out for all"
            )
        elif devices > count:
            fix = f"Try setup(virtual={devices})" if not cards else f"Ask for {count} or fewer"
            yield Problem("devices", devices, f"there are not that many: {have}", fix)
        asked = 1 if devices == 1 else 2
    else:
        asked = len(devices)
        if not devices:
            yield Problem("devices", devices, "names no device", "Leave it out for all")
        if len(set(devices)) < len(devices):
            yield Problem("devices", devices, "names a device twice", "Name each once")
        uuids = {card.uuid for card in cards}
        for d in dict.fromkeys(devices):
            if isinstance(d, str) and d not in uuids:
                known = ", ".join(sorted(uuids)) or "none"
                yield Problem("devices", d, f"no visible card has this UUID; {have}", f"Known UUIDs: {known}")
            elif not isinstance(d, str) and (
                isinstance(d, bool) or not isinstance(d, int) or not 0 <= d < count
            ):
                yield Problem(
                    "devices", d, f"no such position; {have}", f"Positions go from 0 to {count - 1}"
                )
    if cards and request.virtual is not None and asked > 1:
        rule = "virtual devices divide one card"
        yield Problem("devices", devices, rule, "Name one card, or leave devices or virtual out")


def _memory_problems(request: Request, cards: Sequence[Card]) -> Iterator[Problem]:
    memory = request.memory
    if memory is None:
        return
    if isinstance(memory, bool) or not isinstance(memory, int | float) or not memory > 0:
        rule = "must be a fraction of a card (0.9) or MiB (4096), and above 0"
        yield Problem("memory", memory, rule, "Try memory=0.9")
        return
    if not cards:
        rule = "TensorFlow refuses a memory limit on CPU devices, and this process sees no cards"
        yield Problem("memory", memory, rule, "Leave it out")
        return
    if memory > 1 and not float(memory).is_integer():
        rule = "a fraction must be at most 1, and MiB a whole number"
        yield Problem("memory", memory, rule, f"Try memory={int(memory)}")
        return
    parts = request.virtual if _is_count(request.virtual) and request.virtual else 1
    each = [memory * card.mib if _is_fraction(memory) else memory for card in cards]
    for card, limit in zip(cards, each, strict=True):
        if limit * parts > card.mib:
            total = f"{parts} x {limit:.0f}" if parts > 1 else f"{limit:.0f}"
            rule = f"{total} MiB is more than card {card.index} ({card.name}) has, {card.mib} MiB"
            yield Problem("memory", memory, rule, f"Ask for at most {card.mib // parts}")


def _have(cards: Sequence[Card]) -> str:
    if not cards:
        return "this process sees no cards, only the CPU as one device"
    return f"this process sees {len(cards)} card{'s' if len(cards) > 1 else ''}"


def visible_cards() -> tuple[Card, ...]:
    """The cards that TensorFlow can use here; none for a TensorFlow built without CUDA."""
    return gpu.visible(nvml.detect(), os.environ) if tf.test.is_built_with_cuda() else ()


def started() -> bool:
    """Whether TensorFlow has started its devices, so that settings come too late.

    TensorFlow has no public word for it; it refuses to change a thread count once started.
    """
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        return True
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return False


def _refuse_changes(request: Request) -> None:
    """Soft placement can change at any time; everything else is settled when TensorFlow starts."""
    asked = replace(request, soft_placement=True)
    if asked in (Request(), _done and replace(_done, soft_placement=True)):
        return
    state = f"{_done} was called before" if _done else "it was started without setup()"
    raise AlreadyStarted(
        f"{asked} comes too late: TensorFlow has already started its devices.\n"
        f"  asked:  {asked}\n"
        f"  is set: {', '.join(names())}; {state}\n"
        f"  fix:    call setup() once, right after the imports, before the first tensor, model or dataset;\n"
        f"          in a notebook, restart the kernel first"
    )


def _tell_tensorflow(layout: Layout, request: Request) -> None:
    physical = tf.config.list_physical_devices(layout.kind)
    if len(physical) <= max(layout.visible):
        rule = (
            f"TensorFlow found {len(physical)} of the {max(layout.visible) + 1} cards that the driver lists"
        )
        raise InvalidArgument("setup()", [Problem("devices", request.devices, rule, "Run: colonnade doctor")])
    if layout.kind == "GPU":
        tf.config.set_visible_devices([physical[i] for i in layout.visible], "GPU")
    for position, parts in zip(layout.visible, layout.parts, strict=True):
        if len(parts) > 1 or parts[0] is not None:
            divided = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in parts]
            tf.config.set_logical_device_configuration(physical[position], divided)
        elif layout.growth:
            tf.config.experimental.set_memory_growth(physical[position], True)
    if layout.growth and any(limit is not None for parts in layout.parts for limit in parts):
        # TensorFlow's Python API takes a limit or growth and drops the other; its allocator
        # honours both when growth comes from this variable, which it reads when it starts.
        os.environ[gpu.GROWTH] = "true"
    if request.threads is not None:
        inside, between = request.threads if isinstance(request.threads, tuple) else (request.threads,) * 2
        tf.config.threading.set_intra_op_parallelism_threads(inside)
        tf.config.threading.set_inter_op_parallelism_threads(between)


def names() -> tuple[str, ...]:
    """The devices to compute on: the visible cards, else the CPU devices. Does not start TensorFlow."""
    for kind in ("GPU", "CPU"):
        divided = [
            tf.config.get_logical_device_configuration(device) or [None]
            for device in tf.config.get_visible_devices(kind)
        ]
        if divided:
            return tuple(f"/device:{kind}:{i}" for i in range(sum(map(len, divided))))
    raise AssertionError("TensorFlow always has a CPU device")


def resolve(
    devices: int | Sequence[int | str] | None, where: str, argument: str = "devices"
) -> tuple[str, ...]:
    """Device strings from what a user passes as `devices=`: None (all), a count, positions, strings."""
    have = names()
    if devices is None:
        return have
    if isinstance(devices, int):
        problems = list(_count_problems(devices, have, argument))
        check(where, problems)
        return have[:devices]
    chosen = [have[d] if isinstance(d, int) and 0 <= d < len(have) else d for d in devices]
    check(where, _name_problems(tuple(devices), chosen, have, argument))
    return tuple(str(d) for d in chosen)


def _count_problems(count: int, have: Sequence[str], argument: str) -> Iterator[Problem]:
    if not _is_count(count):
        yield Problem(argument, count, "a count must be a whole number from 1 up", "Leave it out for all")
    elif count > len(have):
        rule = f"TensorFlow has {len(have)} device{'s' if len(have) > 1 else ''} here ({', '.join(have)})"
        late = " (in a new process: TensorFlow has started)" if started() else ""
        yield Problem(argument, count, rule, f"Right after the imports: cn.setup(virtual={count}){late}")


def _name_problems(
    asked: tuple[int | str, ...], chosen: Sequence[int | str], have: Sequence[str], argument: str
) -> Iterator[Problem]:
    if not asked:
        yield Problem(argument, asked, "names no device", "Leave it out for all")
    if len(set(chosen)) < len(chosen):
        yield Problem(argument, asked, "names a device twice", "Name each once")
    for name, device in zip(asked, chosen, strict=True):
        if not isinstance(device, str):
            yield Problem(
                argument, name, f"no such position among {len(have)} devices", f"From 0 to {len(have) - 1}"
            )
        elif not _is_device_string(device):
            yield Problem(argument, name, "is not a TensorFlow device string", f"One of: {', '.join(have)}")


def _is_device_string(text: str) -> bool:
    try:
        spec = tf.DeviceSpec.from_string(text)
    except ValueError:
        return False
    return spec.device_type is not None and spec.device_index is not None
