"""Simulates the stages of one replica: the tasks of a schedule on devices, and what they send on links.

The order of tasks is that of the generators in `reason.schedules.schedule`, which the engine executes. A
device takes its tasks one by one; a task begins when its device is free and what it needs has arrived; a link
carries one message at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan
from colonnade.reason.schedules.schedule import Slot, StageTask, needed
from colonnade.reason.simulator.pool import share

# (device, start, end, task): what ran when; devices are positions among the stages.
Ran = tuple[int, float, float, StageTask]


@dataclass(frozen=True)
class StageCosts:
    """Of one micro-batch: seconds of each stage there and back, and of the way to the next stage."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    onward: tuple[float, ...]  # from stage k to k + 1; the gradient takes as long the other way
    num_devices: int  # stage k is on device k modulo this
    again: tuple[float, ...] = ()  # of the way back: what is recomputed before anything must have arrived


def exchanged_bytes(parts: Sequence[Sequence[LayerCost]], plan: Plan, wire: float = 1.0) -> int:
    """What one of the devices that layers are split over sends to the next in a step, in the busiest stage.

    >>> wide = LayerCost("wide", exchanged=100, exchanges=1)
    >>> exchanged_bytes([[wide, wide]], Plan(batch=8, width=2))  # there and back, a whole batch of two layers
    3200
    """
    if plan.width == 1:
        return 0
    layers = [[one for k in range(s, len(parts), plan.stage) for one in parts[k]] for s in range(plan.stage)]
    most = max(sum(layer.exchanged for layer in stage) for stage in layers)
    times = 3 if plan.recompute in ("full", "stage") else 2
    return round(2 * (plan.width - 1) / plan.width * most * wire * times * plan.batch / plan.data)


def run(slots: Iterable[Slot], costs: StageCosts, paces: Sequence[float] | None = None) -> list[Ran]:
    """What ran when, task by task; `paces` are how many times as long each device takes.

    >>> from colonnade.reason.schedules.schedule import gpipe
    >>> ran = run(gpipe(2, 2), StageCosts((1.0, 1.0), (1.0, 1.0), (0.0,), 2))
    >>> max(end for _, _, end, _ in ran)
    6.0
    """
    num_stages = len(costs.forward)
    free = [0.0] * costs.num_devices
    arrived: dict[tuple[int, int, bool], float] = {}
    links: dict[tuple[int, int], float] = {}  # from a device to another
    ran: list[Ran] = []
    pace = paces or [1.0] * costs.num_devices
    for slot in slots:
        for task in slot:
            stage, micro_batch, backward = task
            device = stage % costs.num_devices
            there = arrived.get((stage, micro_batch, backward), 0.0)
            if backward and costs.again:
                there -= costs.again[stage] * pace[device]
            start = there if there > free[device] else free[device]
            seconds = (costs.backward if backward else costs.forward)[stage] * pace[device]
            end = free[device] = start + seconds
            ran.append((device, start, end, task))
            goal = stage - 1 if backward else stage + 1
            if not backward and stage == num_stages - 1:
                arrived[stage, micro_batch, True] = end
            elif 0 <= goal < num_stages:
                way = costs.onward[min(stage, goal)]
                link = device, goal % costs.num_devices
                leaves = max(end, links.get(link, 0.0))
                links[link] = leaves + way
                arrived[goal, micro_batch, backward] = leaves + way
    return ran


def run_shared(
    slots: Iterable[Slot],
    costs: StageCosts,
    capacity: float,
    paces: Sequence[float] | None = None,
    replicas: int = 1,
) -> list[Ran]:
    """The same where the devices share the cores of one processor, and nothing is copied between them.

    So do the devices of all replicas, which are taken to be at work when these are.
    """
    num_stages = len(costs.forward)
    orders: list[list[StageTask]] = [[] for _ in range(costs.num_devices)]
    for slot in slots:
        for task in slot:
            orders[task.stage % costs.num_devices].append(task)
    pace = paces or [1.0] * costs.num_devices
    seconds = {
        task: (costs.backward if task.backward else costs.forward)[task.stage] * pace[k]
        for k, order in enumerate(orders)
        for task in order
    }
    need: Callable[[StageTask], StageTask | None] = lambda task: needed(task, num_stages)  # noqa: E731
    times = share(orders, seconds, need, capacity, replicas)  # type: ignore[arg-type]
    return [(task.stage % costs.num_devices, *times[task], task) for order in orders for task in order]
