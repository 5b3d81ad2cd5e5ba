"""Estimates a step in closed form, to choose among thousands of layouts which ones to simulate."""

from itertools import pairwise

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan, even_stages, spans
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.pool import capacity_of
from colonnade.reason.simulator.runtime import Runtime
from colonnade.reason.transfers.cost import Group, all_reduce, copy, group_of

# Up to so many devices every group is looked at, beyond the first of each kind.
FEW = 16


def estimated(topology: Topology, workload: Workload, plan: Plan, runtime: Runtime) -> float:
    """Seconds of a step: the slowest stage once per micro-batch and stage, the reduction, the update."""
    rows = plan.batch / plan.data / plan.micro_batches
    stages = plan.layers or even_stages(len(workload.layers), plan.stage * plan.chunks)
    again = 1 if plan.recompute in ("full", "stage") else 0
    looked_at = range(plan.data) if plan.num_devices <= FEW else range(1)
    took = [0.0] * plan.stage
    sizes = [0.0] * plan.stage
    for part, (begin, end) in enumerate(spans(stages, plan.stage * plan.chunks)):
        stage = part % plan.stage
        layers = _counted(workload.layers[begin:end])
        took[stage] += max(
            _stage_seconds(topology, workload, plan, layers, (d, stage), rows, again) for d in looked_at
        )
        sizes[stage] += sum(
            count * workload.dense_gradient(layer) / (plan.width if layer.exchanged else 1)
            for layer, count in layers.items()
        )
    way = _way(topology, workload, plan, stages, rows)
    slowest = max(*took, way) if way else max(took)
    compute = slowest * plan.micro_batches + sum(took) - max(took) + 2 * (plan.stage - 1) * way
    capacity = capacity_of(topology, workload, plan)
    if capacity is not None:  # all devices together do no more than this at once
        compute = max(compute, sum(took) * plan.micro_batches * plan.data / max(capacity, 1e-9))
    split = plan.stage * plan.width * (plan.data if plan.sharded else 1)
    update = layer_time.update_seconds(workload, topology.devices[plan.device(0)]) / split
    if plan.data == 1:
        return compute + update
    groups = [
        group_of(topology, [plan.device(d, s) for d in range(plan.data)], plan.width)
        for s in (range(plan.stage) if plan.num_devices <= FEW else range(1))
    ]
    heaviest = max(sizes)
    reduction = max(all_reduce(group, heaviest, "best") for group in groups)
    alone = plan.micro_batches == 1 or plan.stage == 1
    hidden = compute / 2 / plan.micro_batches if runtime.overlap and alone else 0.0
    every = plan.every if plan.sync in ("local", "diloco", "elastic") else 1
    return compute + max(0.0, reduction - hidden) / every + update


def _counted(layers: tuple[LayerCost, ...]) -> dict[LayerCost, int]:
    counted: dict[LayerCost, int] = {}
    for layer in layers:
        counted[layer] = counted.get(layer, 0) + 1
    return counted


def _stage_seconds(
    topology: Topology,
    workload: Workload,
    plan: Plan,
    layers: dict[LayerCost, int],
    place: tuple[int, int],
    rows: float,
    again: int,
) -> float:
    """Of one micro-batch there and back, in one replica."""
    members = [plan.device(*place, w) for w in range(plan.width)]
    wide: Group | None = group_of(topology, members) if plan.width > 1 else None
    devices = dict.fromkeys(topology.devices[d] for d in members)
    took = 0.0
    for layer, count in layers.items():
        each = [
            layer_time.seconds(workload, layer, device, rows, plan.width, plan.sequence) for device in devices
        ]
        seconds = max(one.forward * (1 + again) + one.backward for one in each)
        if wide is not None and layer.exchanged:
            message = layer.exchanged * rows / layer.exchanges
            seconds += (2 + again) * layer.exchanges * all_reduce(wide, message, "best")
        took += count * seconds
    return took


def _way(topology: Topology, workload: Workload, plan: Plan, stages: tuple[int, ...], rows: float) -> float:
    """Seconds of the longest way of a micro-batch from one stage to the next, in the first replica."""
    if plan.stage == 1:
        return 0.0
    ends = [end for _, end in spans(stages, plan.stage * plan.chunks)]
    row = [plan.device(0, k % plan.stage) for k in range(len(ends))]
    return max(
        copy(topology.links[here][there], workload.layers[end - 1].output * rows)
        for (here, there), end in zip(pairwise(row), ends, strict=False)
    )
