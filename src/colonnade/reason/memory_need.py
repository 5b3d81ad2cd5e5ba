"""How many bytes a plan needs on a device: parameters, gradients, slots and activations."""

from dataclasses import dataclass

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan, even_stages, spans
from colonnade.describe.workload import Workload
from colonnade.reason.schedule import SCHEDULES, alive, interleaved


@dataclass(frozen=True)
class Need:
    """Of one device, in bytes."""

    parameters: int
    gradients: int
    slots: int
    activations: int  # kept until they come back
    working: int = 0  # more, while one layer is at work again

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.slots + self.activations + self.working


def needs(workload: Workload, plan: Plan) -> list[Need]:
    """For each stage what its devices need; of equal devices the first, which has most."""
    kept = _alive(plan)
    stages = plan.layers or even_stages(len(workload.layers), plan.stage * plan.chunks)
    parts = [workload.layers[begin:end] for begin, end in spans(stages, plan.stage * plan.chunks)]
    rows = -(-plan.batch // (plan.data * plan.micro_batches))
    found = []
    for stage in range(plan.stage):
        layers = [layer for c in range(plan.chunks) for layer in parts[c * plan.stage + stage]]
        held = sum(layer.parameters // (plan.width if layer.exchanged else 1) for layer in layers)
        share = held / workload.parameters if workload.parameters else 0.0
        sharded = {
            name: plan.data if name in plan.sharded else 1 for name in ("parameters", "gradients", "slots")
        }
        activations = round(sum(kept_of(layer, plan) for layer in layers) * rows * kept[stage] / plan.chunks)
        working = max((kept_of(layer, plan.with_(recompute="none")) for layer in layers), default=0) * rows
        found.append(
            Need(
                _part(held, sharded["parameters"]),
                _part(round(share * workload.gradient_bytes), sharded["gradients"]),
                _part(round(share * workload.slots), sharded["slots"]),
                activations,
                working if plan.recompute == "full" else 0,
            )
        )
    return found


def kept_of(layer: LayerCost, plan: Plan) -> int:
    """Bytes that a layer keeps of one example until the backward pass, on each device that has a part."""
    width = plan.width if layer.exchanged else 1
    if plan.recompute == "full":
        # What it got, from which it is computed again; that is as large as what it gives.
        return min(layer.output, layer.activations) // (width if plan.sequence else 1)
    kept = layer.activations - (layer.cheap if plan.recompute == "selective" else 0)
    whole = 0 if plan.sequence else layer.unsplit
    return (kept - whole) // width + whole


def _alive(plan: Plan) -> list[float]:
    """For each stage, of how many micro-batches it keeps activations at most."""
    if plan.stage == 1:
        return [1.0]
    if plan.chunks == 1:
        return [float(n) for n in alive(SCHEDULES[plan.schedule](plan.stage, plan.micro_batches))]
    now, most = [0] * plan.stage, [0] * plan.stage
    for slot in interleaved(plan.stage, plan.micro_batches, plan.chunks):
        for task in slot:
            device = task.stage % plan.stage
            now[device] += -1 if task.backward else 1
            most[device] = max(most[device], now[device])
    return [float(n) for n in most]


def _part(size: int, of: int) -> int:
    return -(-size // of)
