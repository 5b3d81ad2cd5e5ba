"""What training takes of the memory of each device: what a rehearsal saw, dealt out as the variables are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.hardware.devices import estimated_limit
from colonnade.hardware.placement import short
from colonnade.reason.pipeline import Schedule, alive
from colonnade.run.crossing import backward_leg
from colonnade.run.legs import Legs
from colonnade.run.objective import Objective
from colonnade.run.rehearsal import Act, Bytes, Play, Seen, Thing, rehearse
from colonnade.run.residence import dealt
from colonnade.run.trace import Traced

MIB = 2**20


@dataclass(frozen=True)
class Footprint:
    """What one device holds at the peak of a step, in bytes."""

    device: str
    parameters: int
    slots: int
    gradients: int
    activations: int  # and whatever else is alive at the peak: the batch, what ops need while they run

    @property
    def total(self) -> int:
        return self.parameters + self.slots + self.gradients + self.activations


@dataclass(frozen=True)
class Memory:
    """An estimate of what training takes; `print` it for a table."""

    devices: tuple[Footprint, ...]

    def __str__(self) -> str:
        head = f"{'MiB (estimate)':16}" + "".join(
            f"{c:>13}" for c in ("parameters", "slots", "gradients", "activations", "total")
        )
        rows = [
            f"{short(d.device):16}"
            + "".join(
                f"{n / MIB:13.2f}" for n in (d.parameters, d.slots, d.gradients, d.activations, d.total)
            )
            for d in self.devices
        ]
        return "\n".join([head, *rows])


def misfits(memory: Memory) -> Iterator[Problem]:
    """The devices whose limit is below the estimate."""
    for share in memory.devices:
        limit = estimated_limit(share.device)
        if limit is not None and share.total > limit:
            parts = ("parameters", "slots", "gradients", "activations")
            told = ", ".join(f"{part} {getattr(share, part) / MIB:.1f}" for part in parts)
            needed = f"{share.total / MIB:.1f} MiB that {short(share.device)} needs by an estimate ({told})"
            rule, fix = (
                f"is below the {needed}",
                "Spread the model over more devices, or take a smaller batch",
            )
            yield Problem("memory", limit // MIB, rule, fix)


def limited(devices: Sequence[str]) -> bool:
    """Whether any of these devices has a limit that only an estimate can keep."""
    return any(estimated_limit(device) is not None for device in devices)


def things_of(traced: Traced) -> dict[str, Thing]:
    """By the name of an input of a trace: what it is."""
    check("memory()", _unknown(traced))
    inputs = traced.concrete.inputs
    found = {
        t.name: Thing(tuple(n or 1 for n in t.shape), t.dtype.name) for t in inputs if t.dtype != tf.resource
    }
    for tensor, capture in zip(inputs[len(inputs) - len(traced.captures) :], traced.captures, strict=True):
        if capture.variable is not None:
            shape = tuple(capture.variable.shape)
            found[tensor.name] = Thing(shape, capture.variable.dtype.name, variable=True)
    return found


def _unknown(traced: Traced) -> Iterator[Problem]:
    for capture in traced.captures:
        if capture.variable is None and capture.tensor.dtype == tf.resource:
            rule = "is neither a tensor nor a variable, so it cannot be made anew for a rehearsal"
            what = ", ".join(sorted(capture.used_by))
            yield Problem("fn", f"what {what} uses", rule, "Look things up before, and pass the result")


def play_of(
    traced: Traced,
    parameters: Sequence[Any],
    gradients: Sequence[Any],
    optimizer: Any,
    acts: Sequence[Act] = (),
) -> Play:
    """A trace to be rehearsed: in one act, or cut into several.

    `gradients` hold the names of the outputs that are the parameters' gradients.
    """
    concrete = traced.concrete
    handles = {
        c.variable.ref(): t.name
        for t, c in zip(
            concrete.inputs[len(concrete.inputs) - len(traced.captures) :], traced.captures, strict=True
        )
        if c.variable is not None
    }
    names: dict[str, tuple[str, ...]] = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            names[handles[parameter.ref()]] = (gradient.values, gradient.indices)
        elif gradient is not None:
            names[handles[parameter.ref()]] = (gradient,)
    whole = Act.of(concrete, [t.name for t in concrete.inputs], [t.name for t in concrete.outputs])
    plain = None if optimizer is None else dict(keras.optimizers.serialize(optimizer))
    return Play(tuple(acts) or (whole,), things_of(traced), names, plain)


def _rehearsed(traced: Objective, optimizer: Any, acts: Sequence[Act] = ()) -> Seen:
    gradients = traced.pack(traced.leaves([t.name for t in traced.concrete.outputs])).gradients
    return rehearse([play_of(traced, traced.parameters, gradients, optimizer, acts)])[0]


def of_replicas(
    traced: Objective, optimizer: Any, devices: Sequence[str], mode: str, num_active: int
) -> Memory:
    """Replicas that each run this trace on a slice, with variables where `mode` puts them."""
    seen = _rehearsed(traced, optimizer)
    gradients = seen.acts[0].after
    trained = {parameter.ref(): size_of(parameter) for parameter in traced.parameters}
    others = sum(size_of(v) for v in traced.variables if v.ref() not in trained)
    held = _held(list(trained.values()), len(devices), mode)
    found = []
    for i, (device, parameters) in enumerate(zip(devices, held, strict=True)):
        part = parameters / max(1, sum(trained.values()))
        computing = seen.acts[0].peak if i < num_active else 0
        peak = max(computing, round(part * (gradients + seen.update)))
        mine = gradients if i < num_active else round(part * gradients)
        everything = parameters + (others if parameters or mode == "mirrored" else 0)
        found.append(Footprint(device, everything, round(part * seen.slots), mine, peak - mine))
    return Memory(tuple(found))


def of_pipeline(
    traced: Objective,
    legs: Legs,
    optimizer: Any,
    rows: Sequence[Sequence[str]],
    num_micro_batches: int,
    schedule: Schedule,
) -> Memory:
    """Pipelines whose stages run the legs of this trace on micro-batches, in the order of a schedule."""
    num_stages = len(rows[0])
    acts = [
        Act.of(part.function, part.inputs, ["start", "end", *part.outputs]) for part in legs.parts.values()
    ]
    seen = _rehearsed(traced, optimizer, acts)
    by_leg = dict(zip(legs.parts, seen.acts, strict=True))
    trained = {parameter.ref() for parameter in traced.parameters}
    whole = max(1, sum(size_of(parameter) for parameter in traced.parameters))
    kept = alive(schedule(num_stages, num_micro_batches))
    found = []
    for stage in range(num_stages):
        variables = [v for v in traced.variables if min(legs.users[v.ref()]) == stage]
        parameters = sum(size_of(v) for v in variables if v.ref() in trained)
        gradients = _gradient_bytes(traced, [v for v in variables if v.ref() in trained], num_micro_batches)
        there, back = by_leg.get(stage, NOTHING), by_leg.get(backward_leg(stage, num_stages), NOTHING)
        left = max(0, there.after - there.before)  # what a micro-batch leaves until it comes back
        working = max(there.peak - there.before, left + back.peak - back.before)
        activations = max((kept[stage] - 1) * left + working, round(seen.update * parameters / whole))
        slots = round(seen.slots * parameters / whole)
        found.append((sum(map(size_of, variables)), slots, gradients, activations))
    return Memory(tuple(Footprint(row[k], *found[k]) for row in rows for k in range(num_stages)))


NOTHING = Bytes(0, 0, 0)


def _held(sizes: Sequence[int], num_devices: int, mode: str) -> list[int]:
    """The bytes of parameters on each device."""
    if mode == "mirrored":
        return [sum(sizes)] * num_devices
    if mode == "shared":
        return [sum(sizes)] + [0] * (num_devices - 1)
    owners = dealt(sizes, num_devices)
    return [sum(n for n, owner in zip(sizes, owners, strict=True) if owner == i) for i in range(num_devices)]


def _gradient_bytes(traced: Objective, parameters: Sequence[Any], num_micro_batches: int) -> int:
    """Gradients of all micro-batches together: dense ones are added up, sparse ones put side by side."""
    refs = {parameter.ref() for parameter in parameters}
    total = 0
    for parameter, gradient in zip(traced.parameters, traced.structure.gradients, strict=True):
        if parameter.ref() in refs and gradient is not None:
            sparse = isinstance(gradient, tf.IndexedSlices)
            total += num_micro_batches * size_of(gradient.values) if sparse else size_of(parameter)
    return total


def size_of(tensor: Any) -> int:
    """Bytes of a tensor or variable of known shape."""
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)
