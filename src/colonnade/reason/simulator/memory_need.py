"""How many bytes a plan needs on a device: parameters, gradients, slots and activations."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan, even_stages, spans
from colonnade.describe.workload import Workload
from colonnade.reason.schedules.schedule import SCHEDULES, alive, interleaved
from colonnade.reason.simulator.owners import dealt


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


def needs(workload: Workload, plan: Plan, largest: float | None = None) -> list[Need]:
    """For each stage what its devices need; of equal devices the first, which has most.

    Args:
        workload: what a step costs.
        plan: who does what.
        largest: examples of the largest slice of a batch, where slices are not even.
    """
    kept = alive_of(plan.schedule, plan.stage, plan.micro_batches, plan.chunks)
    stages = plan.layers or even_stages(len(workload.layers), plan.stage * plan.chunks)
    parts = [workload.layers[begin:end] for begin, end in spans(stages, plan.stage * plan.chunks)]
    rows = ceil((plan.batch / plan.data if largest is None else largest) / plan.micro_batches)
    per_device = []
    for stage in range(plan.stage):
        layers = [layer for c in range(plan.chunks) for layer in parts[c * plan.stage + stage]]
        each = sum(kept_of(layer, plan) for layer in layers)
        if plan.recompute == "stage":  # what the stage got, from which all of it is computed again
            each = kept_of(layers[0], plan, "full")
        activations = round(each * rows * kept[stage] / plan.chunks)
        again = [kept_of(layer, plan, "none") * rows for layer in layers]
        working = {"full": max(again, default=0), "stage": sum(again)}.get(plan.recompute, 0)
        per_device.append(Need(*_held(workload, layers, plan, rows), activations, working))
    return per_device


def whole_variables(plan: Plan) -> bool:
    """Whether variables are dealt out whole, as the engine does; other software cuts them evenly."""
    return plan.variables == "partitioned" and set(plan.sharded) in (set(), {"slots", "parameters"})


def _held(workload: Workload, layers: Sequence[LayerCost], plan: Plan, rows: int) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and slots on a device that has these layers."""
    held = sum(layer.parameters // (plan.width if layer.exchanged else 1) for layer in layers)
    share = held / workload.parameters if workload.parameters else 0.0
    gradients, slots = round(share * workload.gradient_bytes), round(share * workload.slots)
    if whole_variables(plan) and plan.data > 1:
        most, parameters = _owned(layers, plan.data, plan.width, rows)
        return parameters, gradients, round(slots * most / held) if held else slots
    divided = {
        name: plan.data if name in plan.sharded else 1 for name in ("parameters", "gradients", "slots")
    }
    return (
        _part(held, divided["parameters"]),
        _part(gradients, divided["gradients"]),
        _part(slots, divided["slots"]),
    )


def _owned(layers: Sequence[LayerCost], data: int, width: int, rows: int) -> tuple[int, int]:
    """Bytes of the variables that the fullest device owns, and of all that it holds of parameters.

    It has copies of what others own while it reads them, until the backward pass is over; of a table of which
    it reads rows, these.
    """
    sizes: list[int] = []
    copies: list[int] = []
    for layer in layers:
        split = width if layer.exchanged else 1
        looked_up = layer.sparse / layer.parameters if layer.parameters else 0.0
        for piece in layer.pieces or (layer.parameters,):
            sizes.append(piece // split)
            table = looked_up * piece
            copies.append(round((piece - table + min(table, rows * layer.rows)) / split))
    owned, lent = [0] * data, [0] * data
    for size, copied, owner in zip(sizes, copies, dealt(sizes, data), strict=True):
        owned[owner] += size
        lent[owner] += copied
    whole = sum(copies)
    return max(owned), max(own + whole - own_copies for own, own_copies in zip(owned, lent, strict=True))


def kept_of(layer: LayerCost, plan: Plan, recompute: str | None = None) -> int:
    """Bytes that a layer keeps of one example until the backward pass, on each device that has a part."""
    width = plan.width if layer.exchanged else 1
    how = plan.recompute if recompute is None else recompute
    if how == "full":
        # What it got, from which it is computed again; that is as large as what it gives.
        return min(layer.output, layer.activations) // (width if plan.sequence else 1)
    kept = layer.activations - (layer.cheap if how == "selective" else 0)
    whole = 0 if plan.sequence else layer.unsplit
    return (kept - whole) // width + whole


@lru_cache(maxsize=4096)
def alive_of(schedule: str, num_stages: int, num_micro_batches: int, chunks: int = 1) -> tuple[int, ...]:
    """For each device of a pipeline, of how many micro-batches and chunks it keeps activations at most.

    >>> alive_of("1f1b", 3, 8), alive_of("gpipe", 2, 8)
    ((3, 2, 1), (8, 8))
    """
    if chunks == 1:
        if schedule == "gpipe":
            return (num_micro_batches,) * num_stages
        # Of 1F1B more micro-batches than stages are never kept, of one after the other no more than one.
        needed = {"1f1b": num_stages, "sequential": 1}[schedule]
        return alive(SCHEDULES[schedule](num_stages, min(num_micro_batches, needed)))
    now, most = [0] * num_stages, [0] * num_stages
    # Beyond so many a device is at work there and back in turn, and keeps no more.
    num_micro_batches = min(num_micro_batches, 4 * num_stages)
    for slot in interleaved(num_stages, num_micro_batches, chunks):
        for task in slot:
            device = task.stage % num_stages
            now[device] += -1 if task.backward else 1
            most[device] = max(most[device], now[device])
    return tuple(most)


def _part(size: int, of: int) -> int:
    return -(-size // of)
