"""Lists the layouts that a planner looks at: how many devices, dealt out to which axes, and what else."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import ceil, isqrt
from typing import Any

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.planning.arrangement import arranged, kinds, only_kind
from colonnade.reason.schedules.balance import balanced, balanced_unequal
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.memory_need import alive_of, kept_of

# A width above this has not paid off anywhere: layers are exchanged inside a machine.
WIDEST = 16
# Up to so many devices, any number of them may be used.
FEW = 8
# Parts of a plan that layouts are listed by; all others that are kept are set on each of them.
LISTED = frozenset(("data", "stage", "width", "sync", "every", "max_staleness", "variables", "sharded"))


def counts(num_devices: int) -> list[int]:
    """How many devices a layout may use: any number of few; of many, powers of two and divisors.

    >>> counts(6), counts(20)
    ([1, 2, 3, 4, 5, 6], [1, 2, 4, 5, 8, 10, 16, 20])
    """
    if num_devices <= FEW:
        return list(range(1, num_devices + 1))
    powers = {2**k for k in range(num_devices.bit_length())}
    divisors = {k for k in range(1, num_devices + 1) if num_devices % k == 0}
    return sorted(k for k in powers | divisors if k <= num_devices)


def axes(count: int, workload: Workload) -> Iterator[tuple[int, int, int]]:
    """Ways to deal so many devices out to data, stage and width."""
    wide = any(layer.exchanged for layer in workload.layers)
    for width in range(1, min(count, WIDEST) + 1):
        if count % width or (width > 1 and not wide):
            continue
        for stage in range(1, count // width + 1):
            if count // width % stage == 0 and stage <= len(workload.layers):
                data = count // width // stage
                if data * stage <= workload.batch:
                    yield data, stage, width


def variants(
    topology: Topology, workload: Workload, data: int, stage: int, width: int, keep: Mapping[str, Any]
) -> Iterator[Plan]:
    """The plans with these axes: where variables live, how many micro-batches, what is recomputed."""
    if not _suits(workload, data, stage, width, keep):
        return
    devices = arranged(topology, workload, data, stage, width)
    shared = topology.devices[0].cores is not None
    listed = kinds(topology)
    differ = only_kind(topology) is None and len({listed[d] for d in devices}) > 1
    settled = {name: value for name, value in keep.items() if name not in LISTED}
    for sync in _syncs(data, stage, keep):
        for homes in _homes(data, stage, shared, sync, keep):
            lists: dict[str, list[Any]] = {
                "micro_batches": micro_batches(workload.batch, data, stage),
                "recompute": ["none", "full"] if _can_recompute(workload) else ["none"],
                "shares": _shares(data, stage, sync, differ),
            }
            lists |= {name: [value] for name, value in settled.items()}
            for values in product(*lists.values()):
                fields: dict[str, Any] = dict(zip(lists, values, strict=True))
                number = fields["micro_batches"]
                if number * data > workload.batch or (fields.get("chunks", 1) > 1 and number % stage):
                    continue
                axes: dict[str, Any] = {"data": data, "stage": stage, "width": width, "devices": devices}
                yield Plan(batch=workload.batch, **axes, **homes, **sync, **fields)


def _suits(workload: Workload, data: int, stage: int, width: int, keep: Mapping[str, Any]) -> bool:
    """Whether these axes are those that are kept, and have what other kept parts are about."""
    axes = {"data": data, "stage": stage, "width": width}
    if any(keep.get(name, size) != size for name, size in axes.items()):
        return False
    chunks = keep.get("chunks", 1)
    if keep.get("sequence") and width == 1:
        return False
    return chunks == 1 or (stage > 1 and stage * chunks <= len(workload.layers))


def _syncs(data: int, stage: int, keep: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How replicas work together: in lockstep, unless another way, or any, is asked for."""
    asked = keep.get("sync", "synchronous")
    more = {name: keep[name] for name in ("every", "max_staleness") if name in keep}
    if asked in ("synchronous", "any") or data == 1 or stage > 1:
        yield {**more, "sync": "synchronous"}
    if data > 1 and stage == 1:
        if asked in ("asynchronous", "any"):
            yield {"max_staleness": None, **more, "sync": "asynchronous"}
        for mode in ("local", "diloco", "elastic"):
            if asked in (mode, "any"):
                yield {"every": 32, **more, "sync": mode}


def _homes(
    data: int, stage: int, shared: bool, sync: Mapping[str, Any], keep: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    if "variables" in keep or "sharded" in keep:
        home = keep.get("variables", "partitioned")
        usual = ("slots", "parameters") if home == "partitioned" and data > 1 else ()
        yield {"variables": home, "sharded": keep.get("sharded", usual)}
        return
    if sync["sync"] == "asynchronous":
        yield {"variables": "shared"}
        return
    if shared and stage == 1 and sync["sync"] == "synchronous":
        yield {"variables": "shared"}
        return
    yield {"variables": "mirrored"}
    if data > 1 and stage == 1 and sync["sync"] == "synchronous":
        yield {"variables": "partitioned", "sharded": ("slots", "parameters")}


def _shares(data: int, stage: int, sync: Mapping[str, Any], differ: bool) -> list[str]:
    """Where devices differ, slices may follow their speed."""
    lockstep = data > 1 and stage == 1 and sync["sync"] == "synchronous"
    return ["even", "measured"] if differ and lockstep else ["even"]


@lru_cache(maxsize=4096)
def micro_batches(batch: int, data: int, stage: int) -> list[int]:
    """Into how many micro-batches the batch of a replica may be cut: powers of two, divisors, and some per
    stage.

    >>> micro_batches(40, 2, 2)
    [1, 2, 4, 5, 8, 10, 16, 20]
    """
    if stage == 1:
        return [1]
    most = batch // data
    powers = {2**k for k in range(most.bit_length())}
    small = {k for k in range(1, isqrt(most) + 1) if most % k == 0}
    per_stage = {stage * per for per in (1, 2, 4, 8)}
    return sorted(k for k in powers | small | {most // k for k in small} | per_stage if k <= most)


def _can_recompute(workload: Workload) -> bool:
    return any(layer.activations > layer.output for layer in workload.layers)


def dealt(topology: Topology, workload: Workload, plan: Plan) -> Plan | None:
    """With the layers dealt out to the stages; None where no cut fits the memory."""
    if plan.stage == 1:
        return plan
    stages = plan.stage * plan.chunks
    devices = [_of_stage(topology, plan, k % plan.stage) for k in range(stages)]
    memories = [[d.memory for d in each if d.memory is not None] for each in devices]
    limits = [min(each) // plan.chunks if each else None for each in memories]
    rows = plan.batch / plan.data / plan.micro_batches
    known = {each: _times(workload, each, rows, plan.width, plan.sequence) for each in dict.fromkeys(devices)}
    times = [known[each] for each in devices]
    held, left, alive = _bytes(workload, plan, rows)
    if len({*zip(times, limits, strict=True)}) == 1:
        if limits[0] is not None and sum(held) + sum(left) * min(alive) > stages * limits[0]:
            return None
        free = _cut(times[0], stages)
        found: tuple[int, ...] | None = free
        if limits[0] is not None and not _fits(free, held, left, alive, limits[0]):
            found = balanced(times[0], held, left, alive, limits[0])
    else:
        found = balanced_unequal(times, held, left, alive, limits)
    return None if found is None else plan.with_(layers=found)


def _of_stage(topology: Topology, plan: Plan, stage: int) -> tuple[Device, ...]:
    """The different devices that a stage is on, in all replicas."""
    only = only_kind(topology)
    if only is not None:
        return (only,)
    places = ((d, w) for d in range(plan.data) for w in range(plan.width))
    return tuple(dict.fromkeys(kinds(topology)[plan.device(d, stage, w)] for d, w in places))


@lru_cache(maxsize=4096)
def _cut(times: tuple[float, ...], stages: int) -> tuple[int, ...]:
    """The best cut where memory does not matter."""
    nothing = [0.0] * len(times)
    found = balanced(times, nothing, nothing, [1] * stages, None)
    assert found is not None, "there are at least as many layers as stages"
    return found


def _fits(
    cut: Sequence[int], held: Sequence[float], left: Sequence[float], alive: Sequence[float], limit: float
) -> bool:
    needs = [0.0] * len(alive)
    for stage, kept, active in zip(cut, held, left, strict=True):
        needs[stage] += kept + alive[stage] * active
    return max(needs) <= limit


@lru_cache(maxsize=4096)
def _times(
    workload: Workload, devices: tuple[Device, ...], rows: float, width: int, sequence: bool
) -> tuple[float, ...]:
    """Seconds of each layer there and back for an example, on the slowest of some devices.

    They are rounded: where they do not depend on the size of micro-batches, one cut is best for all sizes.
    """
    known: dict[LayerCost, float] = {}
    for layer in workload.layers:
        if layer not in known:
            took = [layer_time.seconds(workload, layer, d, rows, width, sequence) for d in devices]
            known[layer] = max(one.forward + one.backward for one in took)
    return tuple(float(f"{known[layer] / rows:.9g}") for layer in workload.layers)


def _bytes(workload: Workload, plan: Plan, rows: float) -> tuple[list[float], list[float], Sequence[float]]:
    """What each layer holds, what a micro-batch leaves there, and how many of these a stage keeps."""
    held: dict[LayerCost, float] = {}
    left: dict[LayerCost, float] = {}
    for layer in workload.layers:
        if layer not in held:
            split = plan.width if layer.exchanged else 1
            parts = zip(("parameters", "gradients", "slots"), _parts(workload, layer), strict=True)
            held[layer] = (
                sum(size / (plan.data if name in plan.sharded else 1) for name, size in parts) / split
            )
            left[layer] = kept_of(layer, plan, "full" if plan.recompute == "stage" else None) * ceil(rows)
    alive: Sequence[float] = alive_of(plan.schedule, plan.stage, plan.micro_batches, plan.chunks)
    if plan.chunks > 1:  # of each chunk as many, which is what is counted
        alive = [number / plan.chunks for number in alive] * plan.chunks
    each = ([sizes[layer] for layer in workload.layers] for sizes in (held, left))
    return (*each, alive)  # type: ignore[return-value]


def _parts(workload: Workload, layer: LayerCost) -> tuple[float, float, float]:
    """Bytes of a layer's parameters, gradients and slots."""
    whole = workload.parameters
    share = layer.parameters / whole if whole else 0.0
    return layer.parameters, share * workload.gradient_bytes, share * workload.slots
