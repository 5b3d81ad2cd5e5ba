"""Estimates a step in closed form, to choose among thousands of layouts which ones to simulate."""

from colonnade.describe.plan import Plan, even_stages, spans
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.runtime import Runtime
from colonnade.reason.transfers.cost import all_reduce, group_of


def estimated(topology: Topology, workload: Workload, plan: Plan, runtime: Runtime) -> float:
    """Seconds of a step: the slowest stage once per micro-batch and stage, the reduction, the update."""
    rows = plan.batch / plan.data / plan.micro_batches
    device = topology.devices[plan.device(0)]
    width = [plan.device(0, 0, w) for w in range(plan.width)]
    wide = group_of(topology, width) if plan.width > 1 else None
    stages = plan.layers or even_stages(len(workload.layers), plan.stage)
    slowest, heaviest = 0.0, 0.0
    for begin, end in spans(stages, plan.stage):
        took, size = 0.0, 0.0
        for layer in workload.layers[begin:end]:
            each = layer_time.seconds(workload, layer, device, rows, plan.width, plan.sequence)
            again = 1 if plan.recompute in ("full", "stage") else 0
            took += each.forward * (1 + again) + each.backward
            if wide is not None and layer.exchanged:
                message = layer.exchanged * rows / layer.exchanges
                took += (2 + again) * layer.exchanges * all_reduce(wide, message, "best")
            size += workload.dense_gradient(layer) / (plan.width if layer.exchanged else 1)
        slowest, heaviest = max(slowest, took), max(heaviest, size)
    compute = slowest * (plan.micro_batches + plan.stage - 1)
    if plan.data == 1:
        return compute + workload.update / (plan.stage * plan.width)
    members = [plan.device(d) for d in range(plan.data)]
    reduction = all_reduce(group_of(topology, members, plan.width), heaviest, "best")
    hidden = compute / 2 if runtime.overlap and plan.micro_batches == 1 else 0.0
    every = plan.every if plan.sync in ("local", "diloco", "elastic") else 1
    update = workload.update / (plan.stage * plan.width * (plan.data if plan.sharded else 1))
    return compute + max(0.0, reduction - hidden) / every + update
