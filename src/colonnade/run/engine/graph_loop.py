"""Runs many steps in one call: the loop over batches is in the graph, so Python costs nothing per step."""

import time
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.data.batches import END, Batches, dims, rows
from colonnade.run.engine.protocols import MOST_SKIPPED, Chunk, Outcome, Then
from colonnade.run.trace.concrete import concrete


class Stepped(Protocol):
    """An engine whose step is a graph."""

    def prepare(self, batch: Arguments) -> None:
        """In eager code, before a step on such a batch is built."""

    def step(self, batch: Arguments) -> Outcome:
        """The graph of a step."""

    def told(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of such a step: how many replicas work, the dtype of the loss, those of the metrics."""

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, at this moment."""


class Loop:
    """Compiled steps, one graph for each size and structure of batch.

    Args:
        engine: what builds the graph of a step.
        then: what `once` returns of a step; it becomes part of the graph.
    """

    def __init__(self, engine: Stepped, then: Then) -> None:
        self._engine, self._then = engine, then
        self._single: dict[Hashable, Any] = {}
        self._many: dict[Hashable, Any] = {}
        self.rows = 0  # of the batch at hand
        self.idle = 0  # steps in a row without an update; the trainer counts them

    def once(self, arguments: Arguments) -> Any:
        """One step; what `then` makes of it."""
        key = self._engine.key(arguments)
        if key not in self._single:
            self._engine.prepare(arguments)

            def step(*components: Any) -> Any:
                batch = arguments.with_components(components)
                return self._then(self._engine.step(batch), batch)

            specs = [tf.TensorSpec(c.shape, c.dtype) for c in _known(arguments)]
            self._single[key] = concrete(step, *specs)
        return self._single[key](*arguments.components())

    def stream(
        self,
        dataset: tf.data.Dataset,
        names: Sequence[str],
        keywords: dict[str, Any],
        limit: int | None = None,
    ) -> "Stream":
        # Begins no step before it is asked to.
        return self.along(Batches(dataset, names, keywords))

    def along(self, batches: Batches) -> "Stream":
        return Stream(self, batches)

    def many(self, arguments: Arguments, iterator: Any, spec: Any) -> Any:
        """The compiled loop for batches like this one."""
        key = (self._engine.key(arguments), str(spec))
        if key not in self._many:
            self._engine.prepare(arguments)
            self._many[key] = self._compile(arguments, iterator, spec)
        return self._many[key]

    def metric_names(self, arguments: Arguments) -> list[str]:
        return list(self._engine.told(arguments)[2])

    def _compile(self, arguments: Arguments, iterator: Any, spec: Any) -> Any:
        """A function (iterator, steps, idle, size, batch) -> (steps done, next size and batch, ...).

        The batch at hand is a loop variable and the next one is fetched at the end of a turn, so the
        loop can end before a batch of other dims, or at the end of the data, and hand it back. The
        dims are looked at where a batch is fetched, before it is a loop variable: of those, TensorFlow's
        optimiser takes the shape of the first turn for that of all turns.
        """
        components = _known(arguments)
        loose = [tf.TensorShape([None] * c.shape.rank) for c in components]
        here = dims([leaf.value for leaf in arguments.tensors]).numpy()

        def fetch(source: Any, like: Sequence[Any]) -> tuple[Any, Any, list[Any]]:
            optional = source.get_next_as_optional()

            def value() -> list[Any]:
                found = optional.get_value()
                flat = [tf.identity(t) for t in tf.nest.flatten(found, expand_composites=True)]
                return [rows(found), dims(tf.nest.flatten(found)), *flat]

            # At the end of the data the batch does not matter.
            nothing = [tf.constant(END), tf.zeros_like(here)]
            size, shape, *following = tf.cond(
                optional.has_value(), value, lambda: [*nothing, *(tf.identity(t) for t in like)]
            )
            # Other ranks cannot be compared number by number.
            same = tf.raw_ops.Equal(x=shape, y=here, incompatible_shape_error=False)
            return size, tf.reduce_all(same), following

        def run(source: Any, steps: Any, idle: Any, size: Any, *batch: Any) -> Any:
            replicas, dtype, metric_types = self._engine.told(arguments)
            like = [tf.zeros([replicas], dtype), *(tf.zeros([], kind) for kind in metric_types.values())]

            def goes_on(i: Any, idle: Any, size: Any, same: Any, *rest: Any) -> Any:
                return (i < steps) & same & (idle < MOST_SKIPPED)

            def turn(i: Any, idle: Any, size: Any, same: Any, *rest: Any) -> Any:
                current, (losses, skipped, *_) = rest[: len(components)], rest[len(components) :]
                fixed = [
                    tf.ensure_shape(c, known.shape) for c, known in zip(current, components, strict=True)
                ]
                found = self._engine.step(arguments.with_components(fixed))
                size, same, following = fetch(source, current)
                left_out = tf.cast(found.skipped, tf.int32)
                idle = tf.where(left_out > 0, idle + 1, 0)
                told = [found.replicas, *found.metrics.values()]
                losses = losses.write(i, tf.cast(found.loss, tf.float32))
                return (i + 1, idle, size, same, *following, losses, skipped + left_out, *told)

            losses = tf.TensorArray(tf.float32, size=0, dynamic_size=True, element_shape=[])
            start = (tf.constant(0), idle, size, tf.constant(True), *batch, losses, tf.constant(0), *like)
            shapes = (
                *[tf.TensorShape([])] * 4,
                *loose,
                tf.TensorShape(None),
                tf.TensorShape([]),
                *(t.shape for t in like),
            )
            # One turn at a time: a turn reads what the update of the one before has written.
            end = tf.while_loop(goes_on, turn, start, shape_invariants=shapes, parallel_iterations=1)
            done, idle, size, _, *rest = end
            following, (written, skipped, replicas, *metrics) = (
                rest[: len(components)],
                rest[len(components) :],
            )
            return done, idle, [size, *following], written.stack(), skipped, replicas, metrics

        specs = [tf.TensorSpec(shape, c.dtype) for shape, c in zip(loose, components, strict=True)]
        count = tf.TensorSpec([], tf.int32)
        return concrete(run, iterator, count, count, count, *specs)


class Stream:
    """Steps on batch after batch, some at a time."""

    resting = True  # no step is begun before it is taken

    def __init__(self, loop: Loop, batches: Batches) -> None:
        self._loop, self._batches = loop, batches

    def hold(self, steps: int) -> None:
        pass

    def take(self, steps: int) -> Chunk | None:
        """Up to so many steps: fewer where the dims of the batch change; None at the end of the data."""
        batches = self._batches
        arguments = batches.at_hand()
        if arguments is None:
            return None
        rows = self._loop.rows = arguments.size("fit()") or 0
        compiled = self._loop.many(arguments, batches.iterator, batches.spec)
        start = time.perf_counter()
        counts = tf.constant(steps), tf.constant(self._loop.idle), tf.constant(batches.size)
        done, idle, (size, *following), losses, skipped, replicas, metrics = compiled(
            batches.iterator, *counts, *arguments.components()
        )
        batches.go_on_with(int(size), following)
        seconds = time.perf_counter() - start
        batches.next_pass()
        return Chunk(
            seconds=seconds,
            steps=int(done),
            examples=int(done) * rows,
            losses=losses.numpy().tolist(),
            metrics=dict(zip(self._loop.metric_names(arguments), map(float, metrics), strict=True)),
            replicas=replicas.numpy().tolist(),
            skipped=int(skipped),
            updates=int(done) - int(skipped),
            idle=int(idle),
        )

    def settle(self) -> Chunk | None:
        return None

    def close(self) -> None:
        pass


def _known(arguments: Arguments) -> list[Any]:
    """Specs of the plain tensors of a batch, as far as they are the same for all batches like it.

    The lengths of rows of a ragged tensor, and how many values a sparse one has, are not.
    """
    return arguments.resized(arguments.size("the batch") or 0).components()
