"""The schedules of a pipeline, GPipe, 1F1B and others, as generators: which stage works on what, when.

A schedule yields slots. The tasks of a slot run at once, one per stage at most, and each finds what it
needs among the tasks of earlier slots. In the tables a slot is as long as a task.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class StageTask(NamedTuple):
    """One stage at work on one micro-batch, forward or backward."""

    stage: int
    micro_batch: int
    backward: bool = False

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.micro_batch}"


Slot = tuple[StageTask, ...]
Schedule = Callable[[int, int], Iterator[Slot]]


# One micro-batch at a time, there and back. 2 stages, 3 micro-batches; 2 x stages x micro-batches slots:
#
#   slot    | 0  1  2  3  4  5  6  7  8  9  10 11
#   stage 0 | F0       B0 F1       B1 F2       B2
#   stage 1 |    F0 B0       F1 B1       F2 B2
def sequential(num_stages: int, num_micro_batches: int) -> Iterator[Slot]:
    """No two stages work at once: what a model too large for a device costs without micro-batches.

    Example:
        >>> [[str(task) for task in slot] for slot in sequential(2, 1)]
        [['F0'], ['F0'], ['B0'], ['B0']]
    """
    turns = [(m, backward) for m in range(num_micro_batches) for backward in (False, True)]
    return _slots([[StageTask(k, *turn) for turn in turns] for k in range(num_stages)])


# Everything forward, then everything back. 3 stages, 4 micro-batches; 2 x (m + s - 1) slots:
#
#   slot    | 0  1  2  3  4  5  6  7  8  9  10 11
#   stage 0 | F0 F1 F2 F3             B3 B2 B1 B0
#   stage 1 |    F0 F1 F2 F3       B3 B2 B1 B0
#   stage 2 |       F0 F1 F2 F3 B3 B2 B1 B0
def gpipe(num_stages: int, num_micro_batches: int) -> Iterator[Slot]:
    """A stage keeps the activations of all micro-batches until they come back.

    Example:
        >>> alive(gpipe(3, 8))
        (8, 8, 8)
    """
    there = range(num_micro_batches)
    turns = [*((m, False) for m in there), *((m, True) for m in reversed(there))]
    return _slots([[StageTask(k, *turn) for turn in turns] for k in range(num_stages)])


# As many forward as there are stages ahead, then one forward and one backward in turn, then the rest
# back. 3 stages, 4 micro-batches; as many slots as gpipe:
#
#   slot    | 0  1  2  3  4  5  6  7  8  9  10 11
#   stage 0 | F0 F1 F2       B0 F3 B1    B2    B3
#   stage 1 |    F0 F1    B0 F2 B1 F3 B2    B3
#   stage 2 |       F0 B0 F1 B1 F2 B2 F3 B3
def one_forward_one_backward(num_stages: int, num_micro_batches: int) -> Iterator[Slot]:
    """A stage keeps the activations of as many micro-batches as there are stages from it to the last.

    Example:
        >>> alive(one_forward_one_backward(3, 8))
        (3, 2, 1)
    """
    orders = []
    for k in range(num_stages):
        ahead = min(num_stages - 1 - k, num_micro_batches)
        turns = [(m, False) for m in range(ahead)]
        for m in range(num_micro_batches - ahead):
            turns += [(ahead + m, False), (m, True)]
        turns += [(m, True) for m in range(num_micro_batches - ahead, num_micro_batches)]
        orders.append([StageTask(k, *turn) for turn in turns])
    return _slots(orders)


# Every device holds several parts of the model, which take turns, so a step has shorter ends. 2 devices
# with 2 parts each (stages 0 and 2, stages 1 and 3), 2 micro-batches; a task takes half as long as with
# one part each:
#
#   slot     | 0  1  2  3  4  5  6  7  8  9
#   device 0 | F0 F1 F0 F1    B0    B1 B0 B1      stages 0 0 2 2 - 2 - 2 0 0
#   device 1 |    F0 F1 F0 B0 F1 B1 B0 B1         stages - 1 1 3 3 3 3 1 1
def interleaved(num_devices: int, num_micro_batches: int, chunks: int) -> Iterator[Slot]:
    """1F1B with `chunks` stages on every device, k and k + num_devices and so on; other systems have it.

    Micro-batches go in groups of as many as there are devices (Narayanan and others, 2021), so their
    number is a multiple of that.

    Example:
        >>> len(list(interleaved(2, 2, 2))) < len(list(one_forward_one_backward(2, 2))) * 2
        True
    """
    group, total = num_devices * chunks, num_micro_batches * chunks

    def turn(device: int, i: int, backward: bool) -> StageTask:
        inside = i % group
        chunk = chunks - 1 - inside // num_devices if backward else inside // num_devices
        micro_batch = i // group * num_devices + inside % num_devices
        return StageTask(chunk * num_devices + device, micro_batch, backward)

    orders = []
    for k in range(num_devices):
        ahead = min(2 * (num_devices - 1 - k) + (chunks - 1) * num_devices, total)
        turns = [turn(k, i, False) for i in range(ahead)]
        for i in range(total - ahead):
            turns += [turn(k, ahead + i, False), turn(k, i, True)]
        orders.append([*turns, *(turn(k, i, True) for i in range(total - ahead, total))])
    return _slots(orders, group)


# What is left of gpipe where nothing is differentiated. 3 stages, 4 micro-batches; m + s - 1 slots:
#
#   slot    | 0  1  2  3  4  5
#   stage 0 | F0 F1 F2 F3
#   stage 1 |    F0 F1 F2 F3
#   stage 2 |       F0 F1 F2 F3
def forward(num_stages: int, num_micro_batches: int) -> Iterator[Slot]:
    """All micro-batches forward, one behind the other.

    Example:
        >>> len(list(forward(3, 4)))
        6
    """
    return _slots([[StageTask(k, m) for m in range(num_micro_batches)] for k in range(num_stages)])


SCHEDULES: Mapping[str, Schedule] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}


def alive(slots: Iterable[Slot]) -> tuple[int, ...]:
    """For each stage, of how many micro-batches it keeps activations at most.

    Example:
        >>> alive(one_forward_one_backward(2, 8))
        (2, 1)
    """
    now: dict[int, int] = {}
    most: dict[int, int] = {}
    for task in (task for slot in slots for task in slot):
        if task.backward:
            now[task.stage] -= 1
        else:
            now[task.stage] = now.get(task.stage, 0) + 1
            most[task.stage] = max(most.get(task.stage, 0), now[task.stage])
    return tuple(most[stage] for stage in sorted(most))


def drawn(slots: Iterable[Slot]) -> str:
    """The table of a schedule, a line per stage.

    Example:
        >>> print(drawn(gpipe(2, 2)))
        slot    | 0  1  2  3  4  5
        stage 0 | F0 F1       B1 B0
        stage 1 |    F0 F1 B1 B0
    """
    columns = [{task.stage: str(task) for task in slot} for slot in slots]
    stages = range(1 + max(stage for column in columns for stage in column))
    rows = [("slot", [str(i) for i in range(len(columns))])]
    rows += [(f"stage {k}", [column.get(k, "") for column in columns]) for k in stages]
    lines = [f"{head:7} | {' '.join(f'{cell:2}' for cell in cells)}" for head, cells in rows]
    return "\n".join(line.rstrip() for line in lines)


def _slots(orders: Sequence[Sequence[StageTask]], num_stages: int | None = None) -> Iterator[Slot]:
    """Everyone takes the tasks of an order one by one, each as soon as what it needs is there."""
    stages = len(orders) if num_stages is None else num_stages
    done: set[StageTask] = set()
    at = [0] * len(orders)
    while any(i < len(order) for i, order in zip(at, orders, strict=True)):
        heads = [(k, order[i]) for k, (i, order) in enumerate(zip(at, orders, strict=True)) if i < len(order)]
        ready = [(k, task) for k, task in heads if (need := needed(task, stages)) is None or need in done]
        assert ready, "the orders of the stages wait for each other"
        for k, _ in ready:
            at[k] += 1
        slot = tuple(task for _, task in ready)
        done.update(slot)
        yield slot


def needed(task: StageTask, num_stages: int) -> StageTask | None:
    """The task of another stage, or its own forward, whose result a task takes."""
    if not task.backward:
        return StageTask(task.stage - 1, task.micro_batch) if task.stage else None
    if task.stage == num_stages - 1:
        return StageTask(task.stage, task.micro_batch)
    return StageTask(task.stage + 1, task.micro_batch, True)
