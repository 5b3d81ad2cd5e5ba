"""Slices with the factor of their mean, and sums of gradients divided by the weights of all slices."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.move.reduce import add


def slice_specs(batch: Arguments, counts: Sequence[int]) -> list[Arguments]:
    """What `slices` gives, as far as is needed to trace with."""
    return [batch.resized(count).prefixed(tf.TensorSpec([], tf.float64)) for count in counts]


def slices(
    batch: Arguments, counts: Sequence[int], wanted: range | None = None, factor: float | None = None
) -> list[Arguments]:
    """The slices of a batch, or those that are wanted, each behind one over the size of the whole batch.

    With a `factor`, behind that one.
    """
    factor = tf.constant(1.0 / sum(counts) if factor is None else factor, tf.float64)
    if wanted is None or len(wanted) == len(counts):
        return [part.prefixed(factor) for part in batch.parts(counts)]
    before, after = sum(counts[: wanted.start]), sum(counts[wanted.stop :])
    parts = batch.parts([before, *(counts[i] for i in wanted), after])
    return [part.prefixed(factor) for part in parts[1:-1]]


def divisor(weight: Any) -> Any:
    """What to divide a sum of weighted values by: where nothing has a weight, their mean is 0."""
    return tf.where(weight == 0, tf.ones_like(weight), weight)


def divided(gradient: Any, weight: Any) -> Any:
    """A gradient, dense or sparse or None, over a number."""
    return None if gradient is None else each(lambda g: _over(g, weight), gradient)


def _over(values: Any, weight: Any) -> Any:
    if values.dtype.size >= 4:
        return values / tf.cast(weight, values.dtype)
    # A half float holds few numbers, and none of a batch of a hundred thousand tokens.
    return tf.cast(tf.cast(values, tf.float32) / tf.cast(weight, tf.float32), values.dtype)


def each(fn: Callable[[Any], Any], gradient: Any) -> Any:
    """A function of the values of a gradient, dense or sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)


def plus(gradient: Any, extra: Any) -> Any:
    """The sum of two gradients, of which one may be None; that of two sparse ones has the rows of both."""
    both = [gradient, extra]
    sparse = all(isinstance(one, tf.IndexedSlices) for one in both)
    if sparse and gradient.indices.dtype != extra.indices.dtype:
        both = [tf.IndexedSlices(g.values, tf.cast(g.indices, tf.int64), g.dense_shape) for g in both]
    return add(both)


def components(gradients: Sequence[Any]) -> list[Any]:
    """The plain tensors of the gradients that there are."""
    return tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)
