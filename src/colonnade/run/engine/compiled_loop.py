"""The loop over batches, in the graph: many steps in one call.

The batch at hand is a loop variable and the next one is fetched at the end of a turn, so the loop can end
before a batch of other dims, or at the end of the data, and hand it back. It is fetched behind the whole
step: data that fail would end a step halfway, with some of its variables written.

Where slices are copied ahead, a turn has two batches: the one that it makes a step of, whose slices are with
their devices, and the one after it, which is at hand and is sent there meanwhile. So that one is fetched a
turn earlier. If that fails, the step before it is made all the same, by a call that fetches nothing.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import COMPOSITE, Arguments, Leaf
from colonnade.run.data.batches import END, dims, rows
from colonnade.run.engine.protocols import MOST_SKIPPED, Stepped
from colonnade.run.engine.reached import Reached, collected
from colonnade.run.engine.step_ahead import FLAG, known
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.move.slices_ahead import HOST
from colonnade.run.trace.concrete import concrete

COUNT = tf.TensorSpec([], tf.int32)


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
        # Nothing of a batch varies, as the data say, so nothing is looked at.
        self._alike = all(_is_static(spec) for spec in tf.nest.flatten(iterator.element_spec))
        self._loose = [tf.TensorShape([None] * c.shape.rank) for c in self._known]
        replicas, _, metrics = engine.outcome_spec(arguments)
        self.reached, self.pace = Reached(replicas, list(metrics)), CallPace(steady=is_steady(arguments))
        self.ahead = engine.ahead(arguments)
        specs = [tf.TensorSpec(s, c.dtype) for s, c in zip(self._loose, self._known, strict=True)]
        self.graph = concrete(self._built, iterator, FLAG, COUNT, COUNT, COUNT, COUNT, *specs)

    def run(
        self, iterator: Any, steps: int, idle: int, size: int, batch: Arguments
    ) -> tuple[int, Sequence[Any]]:
        """Up to so many steps, the first on this batch; the size of the one that comes next, and that one."""
        self.reached.begin(steps, idle)
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
        goes_on = (done < steps) & same & _bearable(idle)
        return _LoopState(done, idle, size, same, goes_on, tuple(batch))

    def _first_sent(self, source: Any, again: Any, start: _LoopState) -> _LoopState:
        """Before the first turn: its slices are sent, unless they were, and the next batch is fetched."""
        assert self.ahead is not None
        ahead, first = self.ahead, self._as_batch(start.batch)

        def sent() -> list[Any]:
            with tf.control_dependencies([ahead.send(first)]):
                waiting = self.reached.note_ahead()
            with tf.control_dependencies([waiting]):
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
        done, idle = self._made(state, taken, goes_on)
        goes_on &= _bearable(idle)

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

    def _made(self, state: _LoopState, batch: Arguments, *behind: Any) -> tuple[Any, Any]:
        """One step, which counts once all that it does and what it is `behind` are done; see `_LoopState`."""
        with collected() as effects:
            outcome = self._engine.step(batch)
        with tf.control_dependencies([tf.group(*effects), *behind]):
            return self.reached.note(state.done, outcome)

    def _fetched(self, source: Any, like: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
        """The next batch: its size, whether it is like the others, its components."""
        asked = tf.timestamp()
        with tf.control_dependencies([asked]):
            optional = source.get_next_as_optional()

        def value() -> list[Any]:
            batch = optional.get_value()
            flat = [tf.identity(t) for t in tf.nest.flatten(batch, expand_composites=True)]
            return [rows(batch), self._is_like(batch), *flat]

        # At the end of the data the batch does not matter.
        nothing = [tf.constant(END), tf.constant(False)]
        size, same, *following = tf.cond(
            optional.has_value(), value, lambda: [*nothing, *(tf.identity(t) for t in like)]
        )
        return self.reached.note_fetched(size, asked), same, following

    def _is_like(self, batch: Any) -> Any:
        """Whether a batch has the dims of the others."""
        if self._alike:
            return tf.constant(True)
        # Other ranks cannot be compared number by number.
        same = tf.raw_ops.Equal(x=dims(tf.nest.flatten(batch)), y=self._dims, incompatible_shape_error=False)
        return tf.reduce_all(same | self._varies)


def _bearable(idle: Any) -> Any:
    """Whether so many steps in a row without an update are not too many."""
    return True if tf.get_static_value(idle) == 0 else idle < MOST_SKIPPED


def _is_static(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined()


def _open(leaf: Leaf) -> np.ndarray:
    """For each of its dims whether that varies in one graph."""
    return np.isin(np.arange(len(dims([leaf.value]))), leaf.open)


def is_steady(arguments: Arguments) -> bool:
    """Whether a graph for such batches has them all of one size."""
    return not any(leaf.open or isinstance(leaf.value, COMPOSITE) for leaf in arguments.tensors)
