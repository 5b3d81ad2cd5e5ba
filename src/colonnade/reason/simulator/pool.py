"""Devices that share the cores of one processor: tasks at the same time get slower together."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator import layer_time

Task = Hashable


def capacity_of(topology: Topology, workload: Workload, plan: Plan) -> float | None:
    """How many devices the shared processor serves at full speed; None where each has its own."""
    shared = [topology.devices[d].cores for d in plan.devices]
    if any(cores is None for cores in shared):
        return None
    cores = float(shared[0] or 1)
    gains = [
        gain
        for layer in workload.layers
        if (gain := layer_time.gain(layer, plan.batch / plan.data / plan.micro_batches)) is not None
    ]
    return min(cores, min(gains)) if gains else max(1.0, cores / (workload.cores or cores))


def share(
    orders: Sequence[Sequence[Task]],
    seconds: Mapping[Task, float],
    needs: Callable[[Task], Task | None],
    capacity: float,
    beside: int = 1,
) -> dict[Task, tuple[float, float]]:
    """Start and end of every task.

    Args:
        orders: for each device its tasks, which it takes one by one.
        seconds: of each task where it has the processor to itself.
        needs: what must have ended before a task can begin, if anything.
        capacity: how many devices the processor serves at full speed; with more at work, all are slower
            alike. Less than 1 where devices that work at once hinder each other.
        beside: of how many groups of devices like this one all are at work.

    >>> share([["a"], ["b"]], {"a": 1.0, "b": 2.0}, lambda task: None, 1.0)["b"]
    (0.0, 3.0)
    """
    now, at = 0.0, [0] * len(orders)
    begun: dict[Task, float] = {}
    ended: dict[Task, float] = {}
    left: dict[Task, float] = {}  # of the tasks under way
    working: dict[int, Task] = {}
    total = sum(map(len, orders))
    while len(ended) < total:
        for k, order in enumerate(orders):
            if k in working or at[k] >= len(order):
                continue
            task = order[at[k]]
            need = needs(task)
            if need is None or need in ended:
                working[k], begun[task], left[task] = task, now, seconds[task]
                at[k] += 1
        assert working, "the orders of the devices wait for each other"
        busy = beside * len(working)
        rate = min(1.0, capacity / busy) if busy > 1 else 1.0
        step = min(left[task] for task in working.values())
        now += step / rate
        for k, task in list(working.items()):
            left[task] -= step
            if left[task] <= 1e-12 * max(1.0, seconds[task]) or left[task] <= 0:
                ended[task] = now
                del working[k], left[task]
    return {task: (begun[task], ended[task]) for task in begun}
