"""Cross entropy and best predictions where the vocabulary (the last layer) is split over devices.

Of the logits only one number per row and device travels: the largest, then the sum of exponentials.
So the full logits exist on no device, forward or backward.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem, check, is_whole
from colonnade.run.move.on_device import on, total
from colonnade.run.variables.parts import Parts, joined


@tf.autograph.experimental.do_not_convert
def softmax_cross_entropy(labels: Any, logits: Any) -> Any:
    """The cross entropy of each row, where the logits are the parts of a `Dense(..., gather=False)`.

    Args:
        labels: class numbers, of the shape of the logits without their last dim; or a
            `tf.SparseTensor` of the shape of the logits that holds a weight for some classes of each
            row, and then a row's loss is the weighted sum of `-log(probability)`.
        logits: parts, or a plain tensor that was not split.

    A class number outside the vocabulary is an error when it is seen, as in TensorFlow.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> output = cn.width.Dense(7, gather=False, devices=2, kernel_initializer="zeros")
        >>> cn.width.softmax_cross_entropy(tf.constant([0, 6]), output(tf.ones([2, 3]))).numpy().round(3)
        array([1.946, 1.946], dtype=float32)
    """
    logits = _as_parts(logits)
    check("cn.width.softmax_cross_entropy()", _problems(labels, logits))
    first = logits.devices[0]
    precise = tf.float32 if logits.tensors[0].dtype.size < 4 else logits.tensors[0].dtype
    with tf.device(first):
        rows, columns, weights = _entries(labels, logits.width, precise)
        shape = tf.shape(logits.tensors[0])[:-1]
        num_rows = tf.reduce_prod(shape)
    largest = _largest(logits, precise)
    places = zip(logits.devices, logits.tensors, logits.starts, strict=True)
    sums = [
        on(device, _shares(start, num_rows), part, largest, rows, columns, weights)
        for device, part, start in places
    ]
    exponentials, targets = (total(column, logits.devices) for column in zip(*sums, strict=True))

    def losses(exponentials: Any, targets: Any, weights: Any) -> Any:
        weight = tf.math.unsorted_segment_sum(weights, rows, num_rows)
        loss = weight * tf.math.log(exponentials) - targets
        return tf.cast(tf.reshape(loss, shape), logits.tensors[0].dtype)

    loss = on(first, losses, exponentials, targets, weights)
    loss.set_shape(logits.tensors[0].shape[:-1])
    return loss


@tf.autograph.experimental.do_not_convert
def top_k(logits: Any, k: int) -> tuple[Any, Any]:
    """The `k` largest of each row, and their columns: `tf.math.top_k` over parts.

    Each device finds its own best, and only those travel.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> layer = cn.width.Dense(4, gather=False, devices=2, kernel_initializer="identity")
        >>> cn.width.top_k(layer(tf.constant([[3.0, 9.0, 1.0, 5.0]])), 2)[1].numpy().tolist()
        [[1, 3]]
    """
    logits = _as_parts(logits)
    rule = f"must be a whole number from 1 to the {logits.width} columns"
    good = is_whole(k, 1, logits.width, numpy=True)
    check("cn.width.top_k()", [] if good else [Problem("k", k, rule, "Ask for fewer")])
    best = []
    for device, part, start in zip(logits.devices, logits.tensors, logits.starts, strict=True):
        with tf.device(device):
            own = tf.math.top_k(part, min(k, part.shape[-1]))
            best.append((own.values, own.indices + start))
    first = logits.devices[0]
    values, columns = (joined(side, first) for side in zip(*best, strict=True))
    with tf.device(first):
        top = tf.math.top_k(values, k)
        return top.values, tf.gather(columns, top.indices, batch_dims=columns.shape.rank - 1)


def _as_parts(logits: Any) -> Parts:
    if isinstance(logits, Parts):
        return logits
    whole = tf.convert_to_tensor(logits)
    return Parts((whole,), (whole.device or "/device:CPU:0",))


def _problems(labels: Any, logits: Parts) -> Iterator[Problem]:
    like = logits.tensors[0].shape
    if isinstance(labels, tf.SparseTensor):
        wanted = [*like[:-1], logits.width]
        if like.rank != 2 or not labels.shape.is_compatible_with(wanted):
            rule = f"a sparse tensor must have the shape of the logits, {tuple(wanted)}, of rank 2"
            yield Problem("labels", tuple(labels.shape), rule, "Set its dense_shape")
        elif not labels.dtype.is_floating:
            rule = "the weights of classes must be floats"
            yield Problem("labels", labels.dtype.name, rule, "Try tf.cast(labels, tf.float32)")
        return
    labels = tf.convert_to_tensor(labels)
    if not labels.dtype.is_integer:
        rule = "must be class numbers, or a tf.SparseTensor of weights"
        yield Problem("labels", labels.dtype.name, rule, "Try tf.argmax, or tf.sparse.from_dense")
    elif not labels.shape.is_compatible_with(like[:-1]):
        rule = f"must have the shape of the logits without their last dim, {tuple(like[:-1])}"
        yield Problem("labels", tuple(labels.shape), rule, "One class number per row")


def _entries(labels: Any, width: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Which columns of which rows count, and how much."""
    if isinstance(labels, tf.SparseTensor):
        rows, columns = (tf.cast(side, tf.int32) for side in tf.unstack(labels.indices, num=2, axis=1))
        weights = tf.cast(labels.values, dtype)
    else:
        columns = tf.reshape(tf.cast(labels, tf.int64), [-1])
        rows = tf.range(tf.size(columns))
        weights = tf.ones_like(columns, dtype)
    inside = tf.reduce_all((columns >= 0) & (columns < width))
    said = f"Received a label value which is outside the valid range of [0, {width}). Label values:"
    with tf.device("/device:CPU:0"), tf.control_dependencies([tf.debugging.Assert(inside, [said, columns])]):
        return rows, tf.cast(tf.identity(columns), tf.int32), weights


def _table(part: Any, dtype: Any) -> Any:
    """A part as rows of logits. What is rows already keeps its static shape, which spares ops backward."""
    return tf.cast(part if part.shape.rank == 2 else tf.reshape(part, [-1, part.shape[-1]]), dtype)


def _largest(logits: Parts, dtype: Any) -> Any:
    """The largest logit of each row; what it is does not change the loss, so it has no gradient."""
    tops = []
    for device, part in zip(logits.devices, logits.tensors, strict=True):
        with tf.device(device):
            tops.append(tf.reduce_max(_table(part, dtype), axis=1))
    with tf.device(logits.devices[0]):
        return tf.stop_gradient(tf.reduce_max(tf.stack(tops), axis=0))


def _shares(start: int, num_rows: Any) -> Any:
    """What a part adds: the sum of its exponentials, and the logits that are asked for."""

    def shares(part: Any, largest: Any, rows: Any, columns: Any, weights: Any) -> list[Any]:
        shifted = _table(part, largest.dtype) - largest[:, None]
        mine = tf.where((columns >= start) & (columns < start + part.shape[-1]))[:, 0]
        row = tf.gather(rows, mine)
        column = tf.gather(columns, mine) - start
        picked = tf.gather_nd(shifted, tf.stack([row, column], axis=1)) * tf.gather(weights, mine)
        return [
            tf.reduce_sum(tf.exp(shifted), axis=1),
            tf.math.unsorted_segment_sum(picked, row, num_rows),
        ]

    return shares
