"""Lists the layouts that a planner looks at: how many devices, dealt out to which axes, and what else."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.schedules.balance import balanced
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.memory_need import alive_of, kept_of

# Micro-batches per stage that are tried.
PER_STAGE = (1, 2, 4, 8)
# A width above this has not paid off anywhere: layers are exchanged inside a machine.
WIDEST = 16
# Up to so many devices, any number of them may be used.
FEW = 8
# More micro-batches take long to simulate, and their ends are short already.
MOST_MICRO_BATCHES = 512


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


def arranged(topology: Topology, data: int, stage: int, width: int) -> tuple[int, ...]:
    """Devices for a layout: the best connected ones of a machine; across machines in their order.

    The width is innermost, where links are fastest, then the stages of a replica.
    """
    count = data * stage * width
    if topology.network is None and 1 < count < len(topology):
        return _best(topology, count)
    return tuple(range(count))


@lru_cache(maxsize=4096)
def _best(topology: Topology, count: int) -> tuple[int, ...]:
    return topology.best(count)


def variants(
    topology: Topology, workload: Workload, data: int, stage: int, width: int, keep: Mapping[str, Any]
) -> Iterator[Plan]:
    """The plans with these axes: where variables live, how many micro-batches, what is recomputed."""
    devices = arranged(topology, data, stage, width)
    shared = topology.devices[0].cores is not None
    for sync in _syncs(data, stage, keep):
        for homes in _homes(data, stage, shared, sync):
            for number in _micro_batches(workload.batch, data, stage):
                for recompute in ("none", "full") if _can_recompute(workload) else ("none",):
                    plan = Plan(
                        batch=workload.batch,
                        data=data,
                        stage=stage,
                        width=width,
                        devices=devices,
                        micro_batches=number,
                        recompute=recompute,
                        **homes,
                        **sync,
                    )
                    wanted = {name: value for name, value in keep.items() if name != "sync"}
                    if all(getattr(plan, name) == value for name, value in wanted.items()):
                        yield plan


def _syncs(data: int, stage: int, keep: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """How replicas work together: in lockstep, unless another way, or any, is asked for."""
    asked = keep.get("sync", "synchronous")
    if asked in ("synchronous", "any") or data == 1 or stage > 1:
        yield {"sync": "synchronous"}
    if data > 1 and stage == 1:
        if asked in ("asynchronous", "any"):
            yield {"sync": "asynchronous", "max_staleness": keep.get("max_staleness")}
        for mode in ("local", "diloco", "elastic"):
            if asked in (mode, "any"):
                yield {"sync": mode, "every": keep.get("every", 32)}


def _homes(data: int, stage: int, shared: bool, sync: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if sync["sync"] == "asynchronous":
        yield {"variables": "shared"}
        return
    if shared and stage == 1 and sync["sync"] == "synchronous":
        yield {"variables": "shared"}
        return
    yield {"variables": "mirrored"}
    if data > 1 and stage == 1 and sync["sync"] == "synchronous":
        yield {"variables": "partitioned", "sharded": ("slots", "parameters")}


def _micro_batches(batch: int, data: int, stage: int) -> list[int]:
    if stage == 1:
        return [1]
    most = min(batch // data, MOST_MICRO_BATCHES)
    return sorted({min(per * stage, most) for per in PER_STAGE})


def _can_recompute(workload: Workload) -> bool:
    return any(layer.activations > layer.output for layer in workload.layers)


def dealt(topology: Topology, workload: Workload, plan: Plan) -> Plan | None:
    """With the layers dealt out to the stages; None where no cut fits the memory."""
    if plan.stage == 1:
        return plan
    rows = plan.batch / plan.data / plan.micro_batches
    device = topology.devices[plan.device(0)]
    memory = min((topology.devices[d].memory or 2**62 for d in plan.devices), default=2**62)
    held = [
        (layer.parameters + _share(workload, layer.parameters)) / (plan.width if layer.exchanged else 1)
        for layer in workload.layers
    ]
    took = [
        layer_time.seconds(workload, layer, device, rows, plan.width, plan.sequence)
        for layer in workload.layers
    ]
    stages = balanced(
        [one.forward + one.backward for one in took],
        held,
        [kept_of(layer, plan) * rows for layer in workload.layers],
        alive_of(plan.schedule, plan.stage, plan.micro_batches),
        None if memory == 2**62 else memory,
    )
    return None if stages is None else plan.with_(layers=stages)


def _share(workload: Workload, parameters: int) -> float:
    """Bytes of gradients and slots that come with so many bytes of parameters."""
    whole = workload.parameters
    return parameters * (workload.gradient_bytes + workload.slots) / whole if whole else 0.0
