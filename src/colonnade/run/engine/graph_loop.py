"""Makes steps as compiled graphs: one at a call, or many, which cost Python nothing per step."""

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from colonnade.hardware.clusters.whereabouts import Progress
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.widths import Widths
from colonnade.run.data.batches import Batches
from colonnade.run.data.coming_batches import ComingBatches
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.compiled_loop import CompiledLoop, is_steady
from colonnade.run.engine.protocols import Chunk, Stepped, Steps, Then
from colonnade.run.engine.step_ahead import AsBatch, StepAhead, StepsAhead, known, of_engine
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.machines.peers import is_loss
from colonnade.run.machines.same_batch import digest, kind_of
from colonnade.run.move.slices_ahead import HOST
from colonnade.run.trace.concrete import concrete


class Loop:
    """Compiled steps, one graph for each size and structure of batch.

    Args:
        engine: what builds the graph of a step.
        then: what `once` returns of a step; it becomes part of the graph.
    """

    def __init__(self, engine: Stepped, then: Then) -> None:
        self._engine, self._then = engine, then
        self._single: dict[Hashable, Any] = {}
        self._paces: dict[int, CallPace] = {}  # by the id of what is compiled
        self._many: dict[Hashable, CompiledLoop] = {}
        self._ahead = StepsAhead()
        self._widths = Widths()
        self.rows = 0  # of the batch at hand
        self.idle = 0  # steps in a row without an update; the trainer counts them

    def once(self, arguments: Arguments) -> Any:
        """One step; what `then` makes of it."""
        compiled, arguments = self.built(arguments)
        return self._paced(compiled, arguments, lambda: compiled(*arguments.components()))

    def once_ahead(self, arguments: Arguments, coming: ComingBatches, as_batch: AsBatch) -> Any:
        """The same, and what is coming next is sent ahead, where that takes time (see `StepsAhead`)."""
        batch = self.opened(arguments)
        step = self._sending(batch)
        if step is None:
            return self.once(batch)
        return self._paced(step, batch, partial(self._ahead.call, step, batch, coming, as_batch))

    def ready(self, arguments: Arguments) -> None:
        """Make the graph of such a step before it is asked for."""
        if self._sending(self.opened(arguments)) is None:
            self.built(arguments)

    def _sending(self, batch: Arguments) -> StepAhead | None:
        return self._ahead.of(self._engine.key(batch), partial(of_engine, self._engine, self._then, batch))

    def _paced(self, compiled: Any, arguments: Arguments, call: Callable[[], Any]) -> Any:
        self._engine.begin(arguments)
        pace = self._paces.setdefault(id(compiled), CallPace(steady=is_steady(arguments)))
        start = time.perf_counter()
        with self.wary(lambda: (0, False), pace), tf.device(HOST):  # a call is where its arguments go
            result = call()
        pace.note(time.perf_counter() - start)
        return result

    @contextmanager
    def wary(self, progress: Progress, pace: CallPace) -> Iterator[None]:
        """Around a call: other machines know of it, and if it fails, the engine is told."""
        try:
            with self._engine.calling(progress, pace):
                yield
        except BaseException:
            self._engine.distrust()
            raise

    def built(self, arguments: Arguments) -> tuple[Any, Arguments]:
        """The graph of one step, and the batch as it takes it."""
        arguments = self.opened(arguments)
        key = self._engine.key(arguments)
        if key not in self._single:
            self._engine.prepare(arguments)

            def step(*components: Any) -> Any:
                batch = arguments.with_components(components)
                with tf.device(HOST):
                    return self._then(self._engine.step(batch), batch)

            specs = [tf.TensorSpec(c.shape, c.dtype) for c in known(arguments)]
            self._single[key] = concrete(step, *specs)
        return self._single[key], arguments

    def took(self, steps: int, seconds: float) -> None:
        """So many steps on batches like the one at hand took so long."""
        self._engine.took(self.rows, steps, seconds)

    def expect(self, spec: Arguments) -> None:
        """Be told what is known of all batches before the first one (see `Widths`)."""
        self._widths.expect(spec)

    def opened(self, arguments: Arguments) -> Arguments:
        """A batch, with the dims open that vary from batch to batch."""
        return self._widths.opened(arguments)

    def stream(self, data: FitData, limit: int | None = None) -> "GraphStream":
        # No step is begun before it is asked for, but batches are fetched ahead.
        wanted = data.dataset if limit is None else data.dataset.take(limit)
        return self.along(Batches(wanted, data.names, data.keywords))

    def along(self, batches: Batches) -> "GraphStream":
        return GraphStream(self, batches)

    def rest(self) -> None:
        """No step is to come: slices that were sent ahead take no memory."""
        for compiled in self._many.values():
            if compiled.ahead is not None:
                compiled.ahead.free()

    def many(self, arguments: Arguments, iterator: Any, spec: Any) -> CompiledLoop:
        """The compiled loop for batches like this one."""
        key = (self._engine.key(arguments), str(spec))
        if key not in self._many:
            self._engine.prepare(arguments)
            self._many[key] = CompiledLoop(self._engine, arguments, iterator)
        self._engine.begin(arguments)
        return self._many[key]


class GraphStream:
    """Steps on batch after batch, some at a time."""

    def __init__(self, loop: Loop, batches: Batches) -> None:
        self._loop, self._batches = loop, batches
        self._failed: tf.errors.OpError | None = None
        self.resting = True  # no step is begun before it is taken, but one may have failed halfway

    @property
    def rows_at_hand(self) -> int:
        """Of the batch that the next step takes; 0 at the end of the data."""
        return max(self._batches.size, 0)

    def kind_at_hand(self) -> int:
        """A number for the dims of the batch that the next step takes; 0 at the end of the data."""
        batch = self._batches.at_hand()
        return 0 if batch is None else kind_of(batch.tensors)

    def digest_at_hand(self) -> list[int]:
        """Of the batch that the next step takes (see `same_batch`); empty at the end of the data."""
        batch = self._batches.at_hand()
        return [] if batch is None else [int(part) for part in digest(batch.components())]

    def hold(self, steps: int) -> None:
        pass

    def take(self, steps: int) -> Chunk | None:
        """Up to so many steps: fewer where the dims of the batch change; None at the end of the data.

        Where a step or the data fail, it is fewer too, and the next call raises.
        """
        self.check()
        batches = self._batches
        arguments = batches.at_hand()
        if arguments is None:
            return None
        arguments = self._loop.opened(arguments)
        rows = self._loop.rows = arguments.size("fit()") or 0
        compiled = self._loop.many(arguments, batches.iterator, batches.spec)
        start, reached = time.perf_counter(), compiled.reached
        try:
            # A call is where its arguments go.
            with self._loop.wary(reached.progress, compiled.pace), tf.device(HOST):
                size, batch = compiled.run(batches.iterator, steps, self._loop.idle, batches.size, arguments)
            batches.go_on_with(size, batch)
        except tf.errors.OpError as error:
            if not reached.steps or is_loss(error):
                raise
            self._failed, self.resting = error, reached.resting
            batches.fail(error)
        seconds = time.perf_counter() - start
        chunk = reached.chunk(rows, seconds)
        self._loop.took(chunk.steps, seconds)
        compiled.pace.note((seconds - chunk.waited) / chunk.steps)
        return chunk

    @property
    def failed(self) -> bool:
        """Whether the next call raises."""
        return self._failed is not None

    def check(self) -> None:
        """Raise what has failed, if something has."""
        if self._failed is not None:
            raise self._failed

    def next_pass(self) -> None:
        """After steps: begin the next pass through the data, if one is at its end. That may take long."""
        if self._failed is None:
            self._batches.next_pass()

    def settle(self) -> Chunk | None:
        if self._failed is not None and not self.resting:  # nothing can be made of half a step
            raise self._failed
        return None

    def close(self) -> None:
        self._loop.rest()


def once_of(loop: Steps, arguments: Arguments, coming: Any, as_batch: AsBatch) -> Any:
    """One step on a batch that comes from there, with a look at the next where both can do that."""
    if isinstance(loop, Loop) and isinstance(coming, ComingBatches):
        return loop.once_ahead(arguments, coming, as_batch)
    return loop.once(arguments)
