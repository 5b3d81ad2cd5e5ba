"""Runs many steps in one call: the loop over batches is in the graph, so Python costs nothing per step."""

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments, Leaf
from colonnade.run.batch.widths import Widths
from colonnade.run.data.batches import END, Batches, dims, rows
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.protocols import MOST_SKIPPED, Chunk, Outcome, Then
from colonnade.run.engine.reached import Reached, collected
from colonnade.run.machines.peers import is_loss
from colonnade.run.machines.same_batch import digest
from colonnade.run.trace.concrete import concrete

# What is not on a device of its own, above all the batch and its cutting, is here: else it would be on the
# first card, and reach the others from there.
HOST = "/device:CPU:0"


class Stepped(Protocol):
    """An engine whose step is a graph."""

    def prepare(self, batch: Arguments) -> None:
        """In eager code, before a step on such a batch is built."""

    def step(self, batch: Arguments) -> Outcome:
        """The graph of a step."""

    def outcome_spec(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of such a step: how many replicas work, the dtype of the loss, those of the metrics."""

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, at this moment."""

    def took(self, rows: int, steps: int, seconds: float) -> None:
        """So many steps, on batches of so many rows, took so long."""

    def distrust(self) -> None:
        """A step has failed, and may have left copies of variables that differ."""


class _LoopState(NamedTuple):
    """What one turn of the loop hands on to the next."""

    done: Any  # steps
    idle: Any  # steps in a row without an update
    size: Any  # rows of the batch at hand, or END
    same: Any  # whether it has the dims of the batches of this loop
    batch: Any  # its components


class Loop:
    """Compiled steps, one graph for each size and structure of batch.

    Args:
        engine: what builds the graph of a step.
        then: what `once` returns of a step; it becomes part of the graph.
    """

    def __init__(self, engine: Stepped, then: Then) -> None:
        self._engine, self._then = engine, then
        self._single: dict[Hashable, Any] = {}
        self._many: dict[Hashable, tuple[Any, Reached]] = {}
        self._widths = Widths()
        self.rows = 0  # of the batch at hand
        self.idle = 0  # steps in a row without an update; the trainer counts them

    def once(self, arguments: Arguments) -> Any:
        """One step; what `then` makes of it."""
        compiled, arguments = self.built(arguments)
        with self.wary(), tf.device(HOST):  # a call is where its arguments go
            return compiled(*arguments.components())

    @contextmanager
    def wary(self) -> Iterator[None]:
        """Around a call: if it fails, the engine is told."""
        try:
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

            specs = [tf.TensorSpec(c.shape, c.dtype) for c in _known(arguments)]
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

    def many(self, arguments: Arguments, iterator: Any, spec: Any) -> tuple[Any, Reached]:
        """The compiled loop for batches like this one, and where it keeps what it has reached."""
        key = (self._engine.key(arguments), str(spec))
        if key not in self._many:
            self._engine.prepare(arguments)
            replicas, _, metrics = self._engine.outcome_spec(arguments)
            reached = Reached(replicas, list(metrics))
            self._many[key] = self._compile(arguments, iterator, reached), reached
        return self._many[key]

    def _compile(self, arguments: Arguments, iterator: Any, reached: Reached) -> Any:
        """A function (iterator, steps, idle, size, batch) -> the state of the loop at its end.

        The batch at hand is a loop variable and the next one is fetched at the end of a turn, so the
        loop can end before a batch of other dims, or at the end of the data, and hand it back. The
        dims are looked at where a batch is fetched, before it is a loop variable: of those, TensorFlow's
        optimiser takes the shape of the first turn for that of all turns.

        It is fetched behind the whole step: data that fail would end a step halfway, with some of its
        variables written.
        """
        components = _known(arguments)
        loose = [tf.TensorShape([None] * c.shape.rank) for c in components]
        here = dims([leaf.value for leaf in arguments.tensors]).numpy()
        varies = np.concatenate([_open(leaf) for leaf in arguments.tensors])

        def fetch(source: Any, like: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
            optional = source.get_next_as_optional()

            def value() -> list[Any]:
                batch = optional.get_value()
                flat = [tf.identity(t) for t in tf.nest.flatten(batch, expand_composites=True)]
                return [rows(batch), dims(tf.nest.flatten(batch)), *flat]

            # At the end of the data the batch does not matter.
            nothing = [tf.constant(END), tf.zeros_like(here)]
            size, shape, *following = tf.cond(
                optional.has_value(), value, lambda: [*nothing, *(tf.identity(t) for t in like)]
            )
            # Other ranks cannot be compared number by number.
            same = tf.raw_ops.Equal(x=shape, y=here, incompatible_shape_error=False)
            return size, tf.reduce_all(same | varies), following

        def run(source: Any, steps: Any, idle: Any, size: Any, *batch: Any) -> Any:
            start = _LoopState(tf.constant(0), idle, size, tf.constant(True), batch)

            def goes_on(state: _LoopState) -> Any:
                return (state.done < steps) & state.same & (state.idle < MOST_SKIPPED)

            def turn(state: _LoopState) -> tuple[_LoopState]:
                known = [tf.ensure_shape(c, k.shape) for c, k in zip(state.batch, components, strict=True)]
                with collected() as effects:
                    outcome = self._engine.step(arguments.with_components(known))
                with tf.control_dependencies([tf.group(*effects)]):
                    done, idle = reached.note(state.done, outcome)
                with tf.control_dependencies([done]):
                    size, same, following = fetch(source, state.batch)
                size = reached.note_fetched(size)
                return (_LoopState(done, idle, size, same, tuple(following)),)

            shapes = tf.nest.map_structure(lambda t: t.shape, start)._replace(batch=tuple(loose))
            # One turn at a time: a turn reads what the update of the one before has written.
            (end,) = tf.while_loop(goes_on, turn, (start,), shape_invariants=(shapes,), parallel_iterations=1)
            return end

        def on_host(*args: Any) -> Any:
            with tf.device(HOST):
                return run(*args)

        specs = [tf.TensorSpec(shape, c.dtype) for shape, c in zip(loose, components, strict=True)]
        count = tf.TensorSpec([], tf.int32)
        return concrete(on_host, iterator, count, count, count, *specs)


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
        if self._failed is not None:
            raise self._failed
        batches = self._batches
        arguments = batches.at_hand()
        if arguments is None:
            return None
        arguments = self._loop.opened(arguments)
        rows = self._loop.rows = arguments.size("fit()") or 0
        compiled, reached = self._loop.many(arguments, batches.iterator, batches.spec)
        reached.begin(steps, self._loop.idle)
        start = time.perf_counter()
        counts = tf.constant(steps), tf.constant(self._loop.idle), tf.constant(batches.size)
        try:
            with self._loop.wary(), tf.device(HOST):  # a call is where its arguments go
                end = compiled(batches.iterator, *counts, *arguments.components())
            batches.go_on_with(int(end.size), end.batch)
        except tf.errors.OpError as error:
            if not reached.steps or is_loss(error):
                raise
            self._failed, self.resting = error, reached.resting
            batches.fail(error)
        seconds = time.perf_counter() - start
        if self._failed is None:
            batches.next_pass()
        chunk = reached.chunk(rows, seconds)
        self._loop.took(chunk.steps, seconds)
        return chunk

    def settle(self) -> Chunk | None:
        if self._failed is not None and not self.resting:  # nothing can be made of half a step
            raise self._failed
        return None

    def close(self) -> None:
        pass


def _open(leaf: Leaf) -> np.ndarray:
    """For each of its dims whether that varies in one graph."""
    return np.isin(np.arange(len(dims([leaf.value]))), leaf.open)


def _known(arguments: Arguments) -> list[Any]:
    """Specs of the plain tensors of a batch, as far as they are the same for all batches like it.

    The lengths of rows of a ragged tensor, and how many values a sparse one has, are not.
    """
    return arguments.resized(arguments.size("the batch") or 0).components()
