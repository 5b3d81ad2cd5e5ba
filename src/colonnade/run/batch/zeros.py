"""Makes a batch of zeros where only shapes are known, to trace or to measure with."""

from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import COMPOSITE, SPECS, Arguments


def zeros_for(spec: Any) -> Any:
    """A value of a kind; what is no spec is returned as it is.

    Example:
        >>> zeros_for(tf.SparseTensorSpec([2, 9])).indices.numpy().tolist()
        [[0, 0], [1, 0]]
    """
    if not isinstance(spec, SPECS):
        return spec
    shape = [size or 1 for size in spec.shape]
    if isinstance(spec, tf.TensorSpec):
        return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        rows = tf.range(shape[0], dtype=tf.int64)[:, None]
        indices = tf.pad(rows, [[0, 0], [0, len(shape) - 1]])
        return tf.SparseTensor(indices, tf.zeros([shape[0]], spec.dtype), shape)
    inner = tf.zeros([shape[0], *[1] * spec.ragged_rank, *shape[1 + spec.ragged_rank :]], spec.dtype)
    return tf.RaggedTensor.from_tensor(
        inner, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype
    )


def with_zeros(arguments: Arguments) -> Arguments:
    """Arguments in which values stand for specs."""
    return arguments.with_values([zeros_for(leaf.value) for leaf in arguments.leaves])


def skeleton(arguments: Arguments) -> list[tuple[tuple[int, ...], Any]]:
    """Of every plain tensor of some arguments, its shape, and its value where that says where entries are.

    Zeros do not do for the indices and the dense shape of a sparse tensor.
    """
    shapes: list[tuple[tuple[int, ...], Any]] = []
    for leaf in arguments.tensors:
        for tensor in tf.nest.flatten(leaf.value, expand_composites=True):
            kept = isinstance(leaf.value, COMPOSITE) and tensor.dtype.is_integer
            shapes.append((tuple(tensor.shape), np.asarray(tensor) if kept else None))
    return shapes
