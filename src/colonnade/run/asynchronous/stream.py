"""Hands the slices of batches to whichever device is free, and gives back finished steps in order."""

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from colonnade.run.asynchronous.fetch import MANY, SHORT, SliceFetcher
from colonnade.run.asynchronous.int_tensors import IntTensors
from colonnade.run.asynchronous.step_record import FinishedSlice, QueuedSlice, Slicing, StepRecord
from colonnade.run.asynchronous.workers import DeviceThreads, FixedOrder, SharedParameters
from colonnade.run.batch.split import Arguments
from colonnade.run.data.batches import Batches
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.protocols import MOST_SKIPPED, Chunk, Outcome, Then

# How a batch is cut and computed, and the tensors of its slices.
SlicedBatch = tuple[Slicing, Sequence[Sequence[Any]]]


class LoopEngine(SharedParameters, Protocol):
    """What the asynchronous loop needs to know of its engine."""

    steps: int
    made: int

    def prepare(self, batch: Arguments) -> Slicing:
        """All that is needed for batches like this one."""

    def begin(self) -> None:
        """Devices are about to work."""

    def end(self) -> None:
        """Devices take no other slice."""


class AsynchronousLoop:
    """The loop of asynchronous training."""

    def __init__(self, engine: LoopEngine, then: Then) -> None:
        self.engine, self._then = engine, then
        self._fetchers: dict[Any, SliceFetcher] = {}
        self.rows = 0  # of the batch at hand
        self.idle = 0  # steps in a row without an update; the trainer counts them
        self.preparing = 0.0  # seconds

    def once(self, arguments: Arguments) -> Any:
        """One global batch, to the end; what `then` makes of it."""
        slicing, pieces = self._cut(arguments)
        stream = AsynchronousStream(self, iter([(slicing, pieces)]))
        try:
            (step,) = stream.complete(1)
        finally:
            stream.close()
        loss, *_ = step.means()
        outcome = Outcome(
            loss=tf.constant(loss, slicing.dtype),
            metrics=step.metrics(),
            replicas=list(step.losses.values()),
            skipped=step.skipped,
            outputs=[step.outputs[i] for i in range(len(slicing.counts))],
            ages=dict(step.ages),
        )
        return self._then(outcome, arguments)

    def stream(self, data: FitData, limit: int | None = None) -> "AsynchronousStream":
        """Steps on batch after batch: the devices go from one to the next without waiting for each other."""
        wanted = data.dataset if limit is None else data.dataset.take(limit)
        return AsynchronousStream(self, self._batches(wanted, data.names, data.keywords))

    def along(self, batches: Batches) -> "AsynchronousStream":
        return AsynchronousStream(self, map(self._cut, iter(batches.next, None)))

    def _of(self, arguments: Arguments) -> Slicing:
        start = time.perf_counter()
        slicing = self.engine.prepare(arguments)
        self.preparing += time.perf_counter() - start
        self.rows = slicing.rows
        return slicing

    def _cut(self, arguments: Arguments) -> SlicedBatch:
        slicing = self._of(arguments)
        flat = slicing.cut(*arguments.components())
        each = len(flat) // len(slicing.counts)
        return slicing, [flat[i * each : (i + 1) * each] for i in range(len(slicing.counts))]

    def _batches(
        self, dataset: tf.data.Dataset, names: Sequence[str], keywords: dict[str, Any]
    ) -> Iterator[SlicedBatch]:
        spec = dataset.element_spec
        key = (str(spec), tuple(keywords.items()))
        if key not in self._fetchers:
            self._fetchers[key] = SliceFetcher(spec, names, keywords, self.engine.devices)
        fetcher = self._fetchers[key]
        static = all(leaf.shape[1:].is_fully_defined() for leaf in tf.nest.flatten(spec))
        known: dict[int, Slicing] = {}  # by the rows of a batch, which takes less time than a key
        for rows, pieces in fetcher.slices(dataset):
            slicing = known.get(rows)
            if slicing is None:
                slicing = self._of(fetcher.like(rows, pieces[0]))
                if static:
                    known[rows] = slicing
            yield slicing, pieces


class AsynchronousStream:
    """Batches on their way through the devices."""

    def __init__(self, loop: AsynchronousLoop, batches: Iterator[SlicedBatch]) -> None:
        self._loop, self._engine, self._batches = loop, loop.engine, batches
        self._open: deque[StepRecord] = deque()  # steps that were begun, in order
        self._complete: deque[StepRecord] = deque()  # those before them, which nobody has taken
        self._int_tensors = IntTensors()
        self._latest = [float("nan")] * len(self._engine.devices)
        self._error: BaseException | None = None  # of a step
        self._failed: Exception | None = None  # of the data, behind all that was begun
        self._left = math.inf  # steps that may be begun
        self._few = len(self._engine.devices)  # with so many slices in the queue, others are fetched
        self._ended = time.perf_counter()  # when steps were taken
        self._unpaid = 0.0  # seconds in which steps were made that nobody has taken
        self._waited = 0.0  # seconds for batches while none was there to take, since steps were taken
        self._engine.begin()
        kind = DeviceThreads if self._engine.order is None else FixedOrder
        self._workers: DeviceThreads | FixedOrder = kind(self._engine)

    @property
    def resting(self) -> bool:
        return not self._open and not self._complete

    def hold(self, steps: int) -> None:
        self._left = steps - len(self._open) - len(self._complete)

    def take(self, steps: int) -> Chunk | None:
        """So many steps, with all their slices; fewer at the end of the data or before an error."""
        return self._timed(steps, begin=True)

    def settle(self) -> Chunk | None:
        """Complete what was begun, and begin nothing."""
        return self._timed(len(self._complete) + len(self._open), begin=False)

    def _timed(self, steps: int, *, begin: bool) -> Chunk | None:
        """So many steps, and the time that they took: also that in which devices went on, since the last.

        Devices go on beyond the steps that are asked for: those that are complete already have a part of it.
        """
        start, prepared = time.perf_counter(), self._loop.preparing
        ahead = max(0.0, min(start, self._workers.access.computed_until) - self._ended)
        there = len(self._complete)
        records = self.complete(steps, begin=begin)
        self._ended = time.perf_counter()
        fresh = len(records) + len(self._complete) - there  # steps that were completed in this time
        # What happens in a fixed order does not depend on the clock.
        if self._engine.order is None and fresh > 1:
            short = self._ended - start < SHORT * fresh
            self._few = len(self._engine.devices) * (MANY // 2 if short else 1)
        self._unpaid += ahead + self._ended - start - (self._loop.preparing - prepared)
        seconds = self._unpaid * len(records) / max(1, len(records) + len(self._complete))
        self._unpaid -= seconds
        return self._chunk(records, seconds)

    def close(self) -> None:
        self._engine.end()
        self._workers.stop()

    def complete(self, steps: int, *, begin: bool = True) -> list[StepRecord]:
        """So many steps that are complete, in order."""
        while len(self._complete) < steps and self._error is None:
            if begin:
                self._feed()
            results = self._workers.next(self._few)
            if not results:
                break
            for result in results:
                self._note(result)
        records = [self._complete.popleft() for _ in range(min(steps, len(self._complete)))]
        self._engine.steps += sum(step.updates > 0 for step in records)
        self._engine.made += len(records)
        if not records and self._error is not None:
            raise self._error
        if not records and begin and self._failed is not None:
            raise self._failed
        return records

    def _feed(self) -> None:
        """Keep slices in the queue: enough for every device to go on while other batches are cut.

        Not more than a few batches at a time: where data come slower than devices take them, the queue is
        never full. What goes wrong with the data is raised when the steps before it are complete.
        """
        if self._workers.waiting > self._few or self._failed is not None:
            return
        for _ in range(2 * len(self._engine.devices)):
            if self._left <= 0 or self._workers.waiting >= 2 * self._few:
                return
            asked, prepared = time.perf_counter(), self._loop.preparing
            try:
                batch = next(self._batches, None)
            except Exception as error:
                self._failed = error
                return
            if not self._workers.waiting:
                self._waited += time.perf_counter() - asked - (self._loop.preparing - prepared)
            if batch is None:
                return
            self._left -= 1
            slicing, pieces = batch
            begun = len(self._complete) + len(self._open)
            schedule_step = self._int_tensors[self._engine.steps + begun]
            step = StepRecord(self._engine.made + begun + 1, schedule_step, slicing)
            self._open.append(step)
            for i, tensors in enumerate(pieces):
                self._workers.give(QueuedSlice(step, i, tensors))

    def _note(self, result: FinishedSlice | BaseException) -> None:
        if isinstance(result, BaseException):
            self._error = self._error or result
            return
        result.piece.step.note(result)
        self._latest[result.device] = result.report.own_loss
        while self._open and self._open[0].complete:
            self._complete.append(self._open.popleft())

    def _chunk(self, records: Sequence[StepRecord], seconds: float) -> Chunk | None:
        if not records:
            return None
        idle, waited, self._waited = self._loop.idle, self._waited, 0.0
        for step in records:
            if idle < MOST_SKIPPED:
                idle = 0 if step.updates else idle + 1
        return Chunk(
            seconds=seconds,
            steps=len(records),
            examples=sum(step.slicing.rows for step in records),
            losses=[step.means()[0] for step in records],
            metrics=records[-1].metrics(),
            replicas=list(self._latest),
            skipped=sum(step.skipped for step in records),
            updates=sum(step.updates for step in records),
            idle=idle,
            waited=min(waited, seconds),
            ages=dict(sum((step.ages for step in records), Counter())),
        )
