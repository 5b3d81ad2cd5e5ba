"""Executes a schedule (GPipe, 1F1B, ...): runs its tasks in order, each on the device of its stage.

The order of a schedule is kept by control inputs: a task waits for the one before it on its device. It
waits for what that one returns and for the call itself, because once TensorFlow has put the call's
body in its place, an edge from the call stands for its effects alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.reason.schedules.schedule import Slot, StageTask
from colonnade.run.trace.raw_call import raw_call
from colonnade.run.trace.stage_marks import backward_leg
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.stage_cut import StageCut


@dataclass(frozen=True)
class Stamp:
    """When a task ran: `task` is row, stage, micro-batch and whether backward."""

    task: tuple[int, int, int, int]
    start: Any
    end: Any


@dataclass(frozen=True)
class _MicroBatch:
    traced: Traced
    legs: StageCut
    given: Sequence[dict[str, Any]]  # by stage: the inputs of the trace
    values: dict[str, Any]  # what the legs so far made, by the names that it has in the trace


class Passage:
    """Builds the graph of one row's tasks."""

    def __init__(self, devices: Sequence[str], row: int) -> None:
        self.devices = tuple(devices)
        self.order: list[int] = []  # the micro-batches as they come out
        self.stamps: list[Stamp] = []
        self._row = row
        self._micro_batches: list[_MicroBatch] = []
        self._before: list[list[Any]] = [[] for _ in devices]  # what the next task of a stage waits for

    @property
    def last(self) -> list[Any]:
        """What to wait for until all tasks are done."""
        return [tensor for tensors in self._before for tensor in tensors]

    def add(
        self,
        traced: Traced,
        legs: StageCut,
        components: Sequence[Any],
        handles: Sequence[Mapping[Any, Any]],
    ) -> None:
        """One more micro-batch: its trace, cut into legs, its arguments, the handles to use at each stage."""
        names = [tensor.name for tensor in traced.concrete.inputs]
        given = [dict(zip(names, traced.bound(components, mine), strict=True)) for mine in handles]
        self._micro_batches.append(_MicroBatch(traced, legs, given, {}))

    def run(self, schedule: Iterable[Slot]) -> None:
        """All tasks, in the order of a schedule."""
        ended: dict[int, None] = {}
        for task in (task for slot in schedule for task in slot):
            self._run(task)
            ended.pop(task.micro_batch, None)
            ended[task.micro_batch] = None
        self.order = list(ended)

    def _run(self, task: StageTask) -> None:
        stage, device = task.stage, self.devices[task.stage]
        micro_batch = self._micro_batches[task.micro_batch]
        leg = backward_leg(stage, len(self.devices)) if task.backward else stage
        part = micro_batch.legs.parts.get(leg)
        if part is None:  # nothing to do, as in a first stage without variables on the way back
            return
        name = f"row_{self._row}_stage_{stage}_{task}"
        with tf.device(device), tf.name_scope(name), tf.control_dependencies(self._before[stage]):
            start, end, *outputs = raw_call(
                part.function,
                [self._value(micro_batch, stage, name) for name in part.inputs],
                [tensor.dtype for tensor in part.function.outputs],
            )
            self._before[stage] = [end, tf.identity(end)]
        for name, output in zip(part.outputs, outputs, strict=True):
            output.set_shape(micro_batch.legs.tensor(name).shape)
            micro_batch.values[name] = output
        where = (self._row, stage, task.micro_batch, int(task.backward))
        self.stamps.append(Stamp(where, start, end))

    def leaves(self, number: int) -> list[Any]:
        """What the trace of a micro-batch returned."""
        micro_batch = self._micro_batches[number]
        outputs = [tensor.name for tensor in micro_batch.traced.concrete.outputs]
        last = len(self.devices) - 1
        return micro_batch.traced.leaves([self._value(micro_batch, last, name) for name in outputs])

    def _value(self, micro_batch: _MicroBatch, stage: int, name: str) -> Any:
        given = micro_batch.given[stage]
        return given[name] if name in given else micro_batch.values[name]
