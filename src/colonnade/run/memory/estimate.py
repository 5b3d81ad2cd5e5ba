"""Decides whether a training fits into memory: parameters, optimizer and activations on each device."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from colonnade.describe.pictures import html
from colonnade.errors import Problem, check
from colonnade.hardware.devices import estimated_limit, is_card, names
from colonnade.hardware.placement import short
from colonnade.reason.schedules.schedule import Schedule, alive
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import skeleton
from colonnade.run.memory import recurrent
from colonnade.run.memory.dry_run import Bytes, Function, Input, Job, JobMemory, dry_run
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.step.objective import Objective
from colonnade.run.trace.stage_marks import backward_leg
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.stage_cut import StageCut
from colonnade.run.variables.homes import owners_of
from colonnade.run.variables.parts import home_of

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

    def _repr_html_(self) -> str:
        """In a notebook: the same table, in units that fit."""
        kinds = ("parameters", "slots", "gradients", "activations", "total")
        rows = []
        for share in self.devices:
            limit = estimated_limit(share.device)
            sizes = [html.size(getattr(share, kind)) for kind in kinds]
            rows.append([short(share.device), *sizes, "" if limit is None else html.size(limit)])
        return html.table(["device (estimate)", *kinds, "limit"], rows)

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
            kinds = ("parameters", "slots", "gradients", "activations")
            parts = ", ".join(f"{kind} {getattr(share, kind) / MIB:.1f}" for kind in kinds)
            needed = f"{share.total / MIB:.1f} MiB that {short(share.device)} needs by an estimate ({parts})"
            rule, fix = (
                f"is below the {needed}",
                "Spread the model over more devices, or take a smaller batch",
            )
            yield Problem("memory", limit // MIB, rule, fix)


def limited(devices: Sequence[str]) -> bool:
    """Whether any of these devices has a limit that only an estimate can keep."""
    return any(estimated_limit(device) is not None for device in devices)


Skeleton = Sequence[tuple[tuple[int, ...], Any]]  # of the arguments of a trace (see `batch.zeros`)


def inputs_of(traced: Traced, skeleton: Skeleton) -> dict[str, Input]:
    """By the name of an input of a trace: what it is."""
    check("memory()", _unknown(traced))
    inputs = traced.concrete.inputs
    count = len(inputs) - len(traced.captures)
    named = {}
    for tensor, (shape, value) in zip(inputs[:count], skeleton, strict=True):
        named[tensor.name] = Input(shape, tensor.dtype.name, value=value)
    for tensor, capture in zip(inputs[count:], traced.captures, strict=True):
        if capture.variable is not None:
            shape = tuple(capture.variable.shape)
            named[tensor.name] = Input(shape, capture.variable.dtype.name, variable=True)
        elif tensor.dtype != tf.resource:
            named[tensor.name] = Input(tuple(n or 1 for n in tensor.shape), tensor.dtype.name)
    return named


def _unknown(traced: Traced) -> Iterator[Problem]:
    for capture in traced.captures:
        if capture.variable is None and capture.tensor.dtype == tf.resource:
            rule = "is neither a tensor nor a variable, so it cannot be made anew for a rehearsal"
            what = ", ".join(sorted(capture.used_by))
            yield Problem("fn", f"what {what} uses", rule, "Look things up before, and pass the result")


def job_of(
    traced: Traced,
    parameters: Sequence[Any],
    gradients: Sequence[Any],
    optimizer: Any,
    skeleton: Skeleton,
    functions: Sequence[Function] = (),
) -> Job:
    """A trace as a job for a dry run: in one function, or cut into several.

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
    named: dict[str, tuple[str, ...]] = {}
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            named[handles[parameter.ref()]] = (gradient.values, gradient.indices)
        elif gradient is not None:
            named[handles[parameter.ref()]] = (gradient,)
    whole = Function.of(concrete, [t.name for t in concrete.inputs], [t.name for t in concrete.outputs])
    plain = None if optimizer is None else dict(keras.optimizers.serialize(optimizer))
    return Job(tuple(functions) or (whole,), inputs_of(traced, skeleton), named, plain)


def _measured(
    traced: Objective, optimizer: Any, slices: Arguments, functions: Sequence[Function] = ()
) -> JobMemory:
    recurrent.warn(traced.concrete.graph.as_graph_def())
    gradients = traced.pack(traced.leaves([t.name for t in traced.concrete.outputs])).gradients
    return dry_run([job_of(traced, traced.parameters, gradients, optimizer, skeleton(slices), functions)])[0]


def homes_of(traces: Iterable[Traced]) -> list[str]:
    """The devices on which layers that are split by width have parts."""
    homes = (home_of(variable) for traced in traces for variable in traced.variables)
    return list(dict.fromkeys(home for home in homes if home is not None))


def of_replicas(
    traced: Objective,
    optimizer: Any,
    part: Arguments,
    devices: Sequence[str],
    mode: str,
    num_active: int,
    by: str = "size",
) -> Memory:
    """Replicas that each run this trace on a slice like `part`, with variables where `mode` puts them.

    What a layer that is split by width keeps and computes is counted where its parts are: of what is alive
    at the peak, a device has the share that it has of all that ops put out.
    """
    measured = _measured(traced, optimizer, part)
    gradients = measured.gradients
    alive_at_peak = measured.functions[0].peak - gradients
    apart = {home: _made_on(measured, home) for home in homes_of([traced])}
    trained = {parameter.ref(): num_bytes(parameter) for parameter in traced.parameters}
    whole = max(1, sum(trained.values()))
    others = sum(num_bytes(v) for v in traced.variables if v.ref() not in trained)
    placed = _Placed(traced.parameters, devices, mode, num_active, by)
    footprints = []
    for device in dict.fromkeys([*devices, *placed.held]):
        share = placed.held[device] / whole
        mine = round(gradients * placed.differentiated[device] / whole)
        active = device in devices[:num_active]
        own = (1 - sum(apart.values())) * active + apart.get(device, 0) * num_active
        peak = max(round(own * alive_at_peak), round(share * (gradients + measured.update)) - mine)
        # What is not trained has a copy where a replica needs its own.
        beside = others if device in devices and (share or mode == "mirrored") else 0
        parameters = placed.held[device] + beside
        footprints.append(Footprint(device, parameters, round(share * measured.slots), mine, max(0, peak)))
    return Memory(tuple(footprints))


def with_slices_ahead(memory: Memory, part: Arguments, num_active: int) -> Memory:
    """With the slice of the next step too, which is copied to a card while the one at hand is computed."""
    size = sum(num_bytes(tensor) for tensor in part.components())
    working = memory.devices[:num_active]
    more = [replace(d, activations=d.activations + size) if is_card(d.device) else d for d in working]
    return Memory((*more, *memory.devices[num_active:]))


def _made_on(measured: JobMemory, device: str) -> float:
    """The share that a device has of all that ops put out."""
    there = sum(size for name, size in measured.made_on.items() if name.endswith(device))
    return there / max(1, sum(measured.made_on.values()))


class _Placed:
    """The bytes of parameters, and of those whose gradient comes up there, on each device."""

    def __init__(
        self, parameters: Sequence[tf.Variable], devices: Sequence[str], mode: str, num_active: int, by: str
    ) -> None:
        self.held: Counter[str] = Counter()
        self.differentiated: Counter[str] = Counter()
        sizes = [num_bytes(parameter) for parameter in parameters]
        homes = [home_of(parameter) for parameter in parameters]
        owners = (
            owners_of(parameters, devices, by)
            if mode == "partitioned"
            else [home or devices[0] for home in homes]
        )
        for size, home, first in zip(sizes, homes, owners, strict=True):
            copies = devices[1:] if mode == "mirrored" else ()
            self.held.update(dict.fromkeys([first, *copies], size))
            if home is not None:
                self.differentiated[home] += num_active * size
            else:
                self.differentiated.update(dict.fromkeys(devices[:num_active], size))
                if first not in devices[:num_active]:  # where the sum arrives
                    self.differentiated[first] += size


def of_pipeline(
    traced: Objective,
    legs: StageCut,
    optimizer: Any,
    part: Arguments,
    rows: Sequence[Sequence[str]],
    num_micro_batches: int,
    schedule: Schedule,
) -> Memory:
    """Pipelines whose stages run the legs of this trace on micro-batches, in the order of a schedule."""
    num_stages = len(rows[0])
    functions = [
        Function.of(leg.function, leg.inputs, ["start", "end", *leg.outputs]) for leg in legs.parts.values()
    ]
    measured = _measured(traced, optimizer, part, functions)
    by_leg = dict(zip(legs.parts, measured.functions, strict=True))
    trained = {parameter.ref() for parameter in traced.parameters}
    whole = max(1, sum(num_bytes(parameter) for parameter in traced.parameters))
    kept = alive(schedule(num_stages, num_micro_batches))
    footprints = []
    for row in rows:
        for place, device in enumerate(dict.fromkeys([*row, *homes_of([traced])])):
            variables = [
                v for v in traced.variables if (home_of(v) or row[min(legs.users[v.ref()])]) == device
            ]
            parameters = sum(num_bytes(v) for v in variables if v.ref() in trained)
            gradients = _gradient_bytes(
                traced, [v for v in variables if v.ref() in trained], num_micro_batches
            )
            activations = round(measured.update * parameters / whole)
            if place < num_stages:
                there = by_leg.get(place, NOTHING)
                back = by_leg.get(backward_leg(place, num_stages), NOTHING)
                left = max(0, there.after - there.before)  # what a micro-batch leaves until it comes back
                working = max(there.peak - there.before, left + back.peak - back.before)
                activations = max((kept[place] - 1) * left + working, activations)
            slots = round(measured.slots * parameters / whole)
            own = [v for v in traced.variables if home_of(v) is None and _lies_on(v, device)]
            more = measured.slots if _makes_slots_on(optimizer, device) else 0
            held = sum(map(num_bytes, variables)) + sum(map(num_bytes, own))
            footprints.append(Footprint(device, held, slots + more, gradients, activations))
    return Memory(tuple(footprints))


def _lies_on(variable: tf.Variable, device: str) -> bool:
    """Whether the user's own variable, beside which a pipeline has copies, takes room on a device.

    The memory of the host, where variables are best kept, is not counted.
    """
    return short(variable.device) == short(device) != "CPU:0"


def _makes_slots_on(optimizer: Any, device: str) -> bool:
    """Whether the optimizer's own slots lie on a device; new ones will be where TensorFlow puts variables."""
    made = [v.value.device for v in getattr(optimizer, "variables", ()) if v.value.shape.rank]
    return short(made[0] if made else names()[0]) == short(device) != "CPU:0"


NOTHING = Bytes(0, 0, 0)


def _gradient_bytes(traced: Objective, parameters: Sequence[Any], num_micro_batches: int) -> int:
    """Gradients of all micro-batches together: dense ones are added up, sparse ones put side by side."""
    refs = {parameter.ref() for parameter in parameters}
    total = 0
    for parameter, gradient in zip(traced.parameters, traced.structure.gradients, strict=True):
        if parameter.ref() in refs and gradient is not None:
            sparse = isinstance(gradient, tf.IndexedSlices)
            total += num_micro_batches * num_bytes(gradient.values) if sparse else num_bytes(parameter)
    return total
