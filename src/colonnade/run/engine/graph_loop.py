"""Runs many steps in one call: the loop over batches is in the graph, so Python costs nothing per step.

The batch at hand is a loop variable and the next one is fetched at the end of a turn, so the loop can end
before a batch of other dims, or at the end of the data, and hand it back. It is fetched behind the whole
step: data that fail would end a step halfway, with some of its variables written.

Where slices are copied ahead, a turn has two batches: the one that it makes a step of, whose slices are with
their devices, and the one after it, which is at hand and is sent there meanwhile. So that one is fetched a
turn earlier. If that fails, the step before it is made all the same, by a call that fetches nothing.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from colonnade.hardware.clusters.whereabouts import Progress
from colonnade.run.batch.split import COMPOSITE, Arguments, Leaf
from colonnade.run.batch.widths import Widths
from colonnade.run.data.batches import END, Batches, dims, rows
from colonnade.run.data.coming_batches import ComingBatches
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.protocols import MOST_SKIPPED, Chunk, Stepped, Steps, Then
from colonnade.run.engine.reached import Reached, collected
from colonnade.run.engine.step_ahead import AsBatch, StepAhead, StepsAhead, known, of_engine
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.machines.peers import is_loss
from colonnade.run.machines.same_batch import digest, kind_of
from colonnade.run.trace.concrete import concrete

# What is not on a device of its own, above all the batch and its cutting, is here: else it would be on the
# first card, and reach the others from there.
HOST = "/device:CPU:0"
COUNT, FLAG = tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)


class _LoopState(NamedTuple):
    """What one turn of the loop hands on to the next."""

    done: Any  # steps
    idle: Any  # steps in a row without an update
    size: Any  # rows of the batch at hand, or END
    same: Any  # whether it has the dims of the batches of this loop
    goes_on: Any  # whether there is another turn
    batch: Any  # the components of the batch at hand


class CompiledLoop:
    """The loop for batches of one size and structure, and what it has reached.

    Args:
        engine: what builds the graph of a step; all is prepared for it.
        arguments: one of these batches.
        iterator: where others come from.
    """

    def __init__(self, engine: Stepped, arguments: Arguments, iterator: Any) -> None:
        self._engine, self._arguments = engine, arguments
        self._known = known(arguments)
        # The dims are looked at where a batch is fetched, before it is a loop variable: of those,
        # TensorFlow's optimiser takes the shape of the first turn for that of all turns.
        self._dims = dims([leaf.value for leaf in arguments.tensors]).numpy()
        self._varies = np.concatenate([_open(leaf) for leaf in arguments.tensors])
        self._loose = [tf.TensorShape([None] * c.shape.rank) for c in self._known]
        replicas, _, metrics = engine.outcome_spec(arguments)
        self.reached, self.pace = Reached(replicas, list(metrics)), CallPace(steady=_is_steady(arguments))
        self.ahead = engine.ahead(arguments)
        specs = [tf.TensorSpec(s, c.dtype) for s, c in zip(self._loose, self._known, strict=True)]
        self.graph = concrete(self._built, iterator, FLAG, COUNT, COUNT, COUNT, COUNT, *specs)

    def run(
        self, iterator: Any, steps: int, idle: int, size: int, batch: Arguments
    ) -> tuple[int, Sequence[Any]]:
        """Up to so many steps, the first on this batch; the size of the one that comes next, and that one."""
        self.reached.begin(steps, idle, ahead=self.ahead is not None)
        components = batch.components()
        try:
            end = self._called(iterator, False, 0, steps, idle, size, components)
        except tf.errors.OpError:
            if self.ahead is None or not self.reached.resting:
                raise
            # The data failed, and the batch before them is with the devices.
            done, idle = self.reached.steps, self.reached.idle
            self._called(iterator, True, done, done + 1, idle, END, components)
            raise
        return int(end.size), end.batch

    def _called(self, iterator: Any, again: bool, *rest: Any) -> Any:
        *counts, components = rest
        return self.graph(iterator, tf.constant(again), *map(tf.constant, counts), *components)

    def _built(
        self, source: Any, again: Any, done: Any, steps: Any, idle: Any, size: Any, *batch: Any
    ) -> Any:
        with tf.device(HOST):
            start = _LoopState(done, idle, size, tf.constant(True), tf.constant(True), batch)
            turn = self._turn
            if self.ahead is not None:
                start, turn = self._first_sent(source, again, start), self._turn_ahead
            shapes = tf.nest.map_structure(lambda t: t.shape, start)._replace(batch=tuple(self._loose))
            # One turn at a time: a turn reads what the update of the one before has written.
            (end,) = tf.while_loop(
                lambda state: state.goes_on,
                lambda state: (turn(source, steps, state),),
                (start,),
                shape_invariants=(shapes,),
                parallel_iterations=1,
            )
            return end

    def _turn(self, source: Any, steps: Any, state: _LoopState) -> _LoopState:
        done, idle = self._made(state, self._as_batch(state.batch))
        with tf.control_dependencies([done]):
            size, same, batch = self._fetched(source, state.batch)
        goes_on = (done < steps) & same & (idle < MOST_SKIPPED)
        return _LoopState(done, idle, size, same, goes_on, tuple(batch))

    def _first_sent(self, source: Any, again: Any, start: _LoopState) -> _LoopState:
        """Before the first turn: its slices are sent, unless they were, and the next batch is fetched."""
        assert self.ahead is not None
        ahead, first = self.ahead, self._as_batch(start.batch)

        def sent() -> list[Any]:
            with tf.control_dependencies([ahead.send(first)]):
                size, same, batch = self._fetched(source, start.batch)
            return [size, same, *batch]

        def as_they_are() -> list[Any]:
            size = self.reached.note_fetched(tf.constant(END), tf.timestamp())
            return [size, tf.constant(False), *(tf.identity(t) for t in start.batch)]

        size, same, *batch = tf.cond(again, as_they_are, sent)
        return start._replace(size=size, same=same, batch=tuple(batch))

    def _turn_ahead(self, source: Any, steps: Any, state: _LoopState) -> _LoopState:
        """A step on the slices that are with the devices; meanwhile those of the batch at hand are sent."""
        assert self.ahead is not None
        ahead = self.ahead
        taken = ahead.take(self._arguments)
        wanted = state.same & (state.done + 1 < steps)

        def sent() -> Any:
            with tf.control_dependencies([ahead.send(self._as_batch(state.batch))]):
                return tf.constant(True)

        goes_on = tf.cond(wanted, sent, lambda: tf.constant(False))
        done, idle = self._made(state, taken)
        goes_on &= idle < MOST_SKIPPED

        def following() -> list[Any]:
            size, same, batch = self._fetched(source, state.batch)
            return [size, same, *batch]

        def at_hand() -> list[Any]:
            return [tf.identity(t) for t in (state.size, state.same, *state.batch)]

        with tf.control_dependencies([done]):
            size, same, *batch = tf.cond(goes_on, following, at_hand)
        return _LoopState(done, idle, size, same, goes_on, tuple(batch))

    def _as_batch(self, components: Sequence[Any]) -> Arguments:
        shaped = [tf.ensure_shape(c, k.shape) for c, k in zip(components, self._known, strict=True)]
        return self._arguments.with_components(shaped)

    def _made(self, state: _LoopState, batch: Arguments) -> tuple[Any, Any]:
        """One step; how many were made, and how many in a row idle."""
        with collected() as effects:
            outcome = self._engine.step(batch)
        with tf.control_dependencies([tf.group(*effects)]):
            return self.reached.note(state.done, outcome)

    def _fetched(self, source: Any, like: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
        """The next batch: its size, whether it is like the others, its components."""
        asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            optional = source.get_next_as_optional()

        def value() -> list[Any]:
            batch = optional.get_value()
            flat = [tf.identity(t) for t in tf.nest.flatten(batch, expand_composites=True)]
            return [rows(batch), dims(tf.nest.flatten(batch)), *flat]

        # At the end of the data the batch does not matter.
        nothing = [tf.constant(END), tf.zeros_like(self._dims)]
        size, shape, *following = tf.cond(
            optional.has_value(), value, lambda: [*nothing, *(tf.identity(t) for t in like)]
        )
        # Other ranks cannot be compared number by number.
        same = tf.raw_ops.Equal(x=shape, y=self._dims, incompatible_shape_error=False)
        return self.reached.note_fetched(size, asked), tf.reduce_all(same | self._varies), following


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
        pace = self._paces.setdefault(id(compiled), CallPace(steady=_is_steady(arguments)))
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
        # Begins no step before it is asked to.
        return self.along(Batches(data.dataset, data.names, data.keywords))

    def along(self, batches: Batches) -> "GraphStream":
        return GraphStream(self, batches)

    def rest(self) -> None:
        """No step is to come: slices that were sent ahead take no memory."""
        for compiled in self._many.values():
            if compiled.ahead is not None:
                compiled.ahead.free()

    def many(self, arguments: Arguments, iterator: Any, spec: Any) -> "CompiledLoop":
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


def _is_steady(arguments: Arguments) -> bool:
    """Whether a graph for such batches has them all of one size."""
    return not any(leaf.open or isinstance(leaf.value, COMPOSITE) for leaf in arguments.tensors)


def _open(leaf: Leaf) -> np.ndarray:
    """For each of its dims whether that varies in one graph."""
    return np.isin(np.arange(len(dims([leaf.value]))), leaf.open)
