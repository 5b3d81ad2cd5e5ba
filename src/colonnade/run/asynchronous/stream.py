"""Devices that take slices from one queue, each as soon as it is free, and do not wait for each other."""

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from colonnade.run.asynchronous.fetch import MANY, SHORT, Cutter
from colonnade.run.asynchronous.int_tensors import Numbers
from colonnade.run.asynchronous.step_record import Finished, Piece, Sliced, Tally
from colonnade.run.asynchronous.workers import InOrder, Shared, Threads
from colonnade.run.batch.split import Arguments
from colonnade.run.data.batches import Batches
from colonnade.run.engine.protocols import MOST_SKIPPED, Chunk, Outcome, Then


class Engine(Shared, Protocol):
    """What the loop needs to know of the engine."""

    steps: int
    made: int

    def prepare(self, batch: Arguments) -> Sliced:
        """All that is needed for batches like this one."""

    def begin(self) -> None:
        """Devices are about to work."""

    def end(self) -> None:
        """Devices take no other slice."""


class Race:
    """The loop of asynchronous training."""

    def __init__(self, engine: Engine, then: Then) -> None:
        self.engine, self._then = engine, then
        self._cutters: dict[Any, Cutter] = {}
        self.rows = 0  # of the batch at hand
        self.idle = 0  # steps in a row without an update; the trainer counts them
        self.preparing = 0.0  # seconds

    def once(self, arguments: Arguments) -> Any:
        """One global batch, to the end; what `then` makes of it."""
        sliced, pieces = self._cut(arguments)
        run = Run(self, iter([(sliced, pieces)]))
        try:
            (tally,) = run.complete(1)
        finally:
            run.close()
        loss, *_ = tally.means()
        found = Outcome(
            loss=tf.constant(loss, sliced.dtype),
            metrics=tally.metrics(),
            replicas=list(tally.losses.values()),
            skipped=tally.skipped,
            outputs=[tally.outputs[i] for i in range(len(sliced.counts))],
            ages=dict(tally.ages),
        )
        return self._then(found, arguments)

    def stream(
        self,
        dataset: tf.data.Dataset,
        names: Sequence[str],
        keywords: dict[str, Any],
        limit: int | None = None,
    ) -> "Run":
        """Steps on batch after batch: the devices go from one to the next without waiting for each other."""
        wanted = dataset if limit is None else dataset.take(limit)
        return Run(self, self._batches(wanted, names, keywords))

    def along(self, batches: Batches) -> "Run":
        return Run(self, map(self._cut, iter(batches.next, None)))

    def _of(self, arguments: Arguments) -> Sliced:
        start = time.perf_counter()
        sliced = self.engine.prepare(arguments)
        self.preparing += time.perf_counter() - start
        self.rows = sliced.rows
        return sliced

    def _cut(self, arguments: Arguments) -> tuple[Sliced, Sequence[Sequence[Any]]]:
        sliced = self._of(arguments)
        flat = sliced.cut(*arguments.components())
        each = len(flat) // len(sliced.counts)
        return sliced, [flat[i * each : (i + 1) * each] for i in range(len(sliced.counts))]

    def _batches(
        self, dataset: tf.data.Dataset, names: Sequence[str], keywords: dict[str, Any]
    ) -> Iterator[tuple[Sliced, Sequence[Sequence[Any]]]]:
        spec = dataset.element_spec
        key = (str(spec), tuple(keywords.items()))
        if key not in self._cutters:
            self._cutters[key] = Cutter(spec, names, keywords, self.engine.devices)
        cutter = self._cutters[key]
        static = all(leaf.shape[1:].is_fully_defined() for leaf in tf.nest.flatten(spec))
        known: dict[int, Sliced] = {}  # by the rows of a batch, which takes less time than a key
        for rows, pieces in cutter.slices(dataset):
            sliced = known.get(rows)
            if sliced is None:
                sliced = self._of(cutter.like(rows, pieces[0]))
                if static:
                    known[rows] = sliced
            yield sliced, pieces


class Run:
    """Batches on their way through the devices."""

    def __init__(self, race: Race, batches: Iterator[tuple[Sliced, Sequence[Sequence[Any]]]]) -> None:
        self._race, self._engine, self._batches = race, race.engine, batches
        self._open: deque[Tally] = deque()  # steps that were begun, in order
        self._complete: deque[Tally] = deque()  # those before them, which nobody has taken
        self._numbers = Numbers()
        self._latest = [float("nan")] * len(self._engine.devices)
        self._error: BaseException | None = None  # of a step
        self._failed: Exception | None = None  # of the data, behind all that was begun
        self._left = math.inf  # steps that may be begun
        self._few = len(self._engine.devices)  # with so many slices in the queue, others are fetched
        self._ended = time.perf_counter()  # when steps were taken
        self._engine.begin()
        self._crew = Threads(self._engine) if self._engine.order is None else InOrder(self._engine)

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
        """So many steps, and the time that they took: also that in which devices went on, since the last."""
        start, prepared = time.perf_counter(), self._race.preparing
        ahead = max(0.0, min(start, self._crew.desk.computed_until) - self._ended)
        there = len(self._complete)
        tallies = self.complete(steps, begin=begin)
        self._ended = time.perf_counter()
        fresh = len(tallies) + len(self._complete) - there  # steps that were completed in this time
        # What happens in a fixed order does not depend on the clock.
        if self._engine.order is None and fresh > 1:
            short = self._ended - start < SHORT * fresh
            self._few = len(self._engine.devices) * (MANY // 2 if short else 1)
        return self._chunk(tallies, ahead + self._ended - start - (self._race.preparing - prepared))

    def close(self) -> None:
        self._engine.end()
        self._crew.stop()

    def complete(self, steps: int, *, begin: bool = True) -> list[Tally]:
        """So many steps that are complete, in order."""
        while len(self._complete) < steps and self._error is None:
            if begin:
                self._feed()
            found = self._crew.next(self._few)
            if not found:
                break
            for result in found:
                self._note(result)
        tallies = [self._complete.popleft() for _ in range(min(steps, len(self._complete)))]
        self._engine.steps += sum(tally.updates > 0 for tally in tallies)
        self._engine.made += len(tallies)
        if not tallies and self._error is not None:
            raise self._error
        if not tallies and begin and self._failed is not None:
            raise self._failed
        return tallies

    def _feed(self) -> None:
        """Keep slices in the queue: enough for every device to go on while other batches are cut.

        Not more than a few batches at a time: where data come slower than devices take them, the queue is
        never full. What goes wrong with the data is raised when the steps before it are complete.
        """
        if self._crew.waiting > self._few or self._failed is not None:
            return
        for _ in range(2 * len(self._engine.devices)):
            if self._left <= 0 or self._crew.waiting >= 2 * self._few:
                return
            try:
                found = next(self._batches, None)
            except Exception as error:
                self._failed = error
                return
            if found is None:
                return
            self._left -= 1
            sliced, pieces = found
            begun = len(self._complete) + len(self._open)
            pace = self._numbers[self._engine.steps + begun]
            tally = Tally(self._engine.made + begun + 1, pace, sliced)
            self._open.append(tally)
            for i, tensors in enumerate(pieces):
                self._crew.give(Piece(tally, i, tensors))

    def _note(self, found: Finished | BaseException) -> None:
        if isinstance(found, BaseException):
            self._error = self._error or found
            return
        found.piece.tally.note(found)
        self._latest[found.device] = found.report.own_loss
        while self._open and self._open[0].complete:
            self._complete.append(self._open.popleft())

    def _chunk(self, tallies: Sequence[Tally], seconds: float) -> Chunk | None:
        if not tallies:
            return None
        idle = self._race.idle
        for tally in tallies:
            if idle < MOST_SKIPPED:
                idle = 0 if tally.updates else idle + 1
        return Chunk(
            seconds=seconds,
            steps=len(tallies),
            examples=sum(tally.sliced.rows for tally in tallies),
            losses=[tally.means()[0] for tally in tallies],
            metrics=tallies[-1].metrics(),
            replicas=list(self._latest),
            skipped=sum(tally.skipped for tally in tallies),
            updates=sum(tally.updates for tally in tallies),
            idle=idle,
            ages=dict(sum((tally.ages for tally in tallies), Counter())),
        )
