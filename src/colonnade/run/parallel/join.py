"""Joins the results of replicas: concatenates batches, averages, adds or stacks what has no batch dim."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.batch.split import is_tensor
from colonnade.run.move.reduce import order_for, reduce

JOINS = ("concat", "mean", "sum", "stack")


def check_join(join: str, where: str) -> None:
    """Refuse a word that is no join."""
    if join not in JOINS:
        rule = f"must be one of {', '.join(JOINS)}"
        raise InvalidArgument(where, [Problem("join", join, rule, "Leave it out to concatenate")])


def join_leaf(
    path: str,
    replicas: Sequence[Any],
    devices: Sequence[str],
    counts: Sequence[Any],
    join: str,
    follows_batch: bool,
    where: str,
) -> Any:
    """One output of all replicas as one value.

    Args:
        path: where in the result it is, for messages.
        replicas: the output of each replica.
        devices: where each replica ran; sums follow the links between them.
        counts: the size of each replica's slice.
        join: what to do with an output that has no batch dim.
        follows_batch: whether its first dim is the batch dim.
        where: who asks, for messages.
    """
    first = replicas[0]
    if not is_tensor(first):
        if any(other is not first and other != first for other in replicas):
            rule = "is a Python value that differs between the replicas"
            raise InvalidArgument(where, [Problem(f"output{path}", list(replicas), rule, "Return a tensor")])
        return first
    if join == "concat" and not follows_batch:
        kind = "it is a scalar" if first.shape.rank == 0 else "its size is the same for every slice"
        rule = f"has no batch dim ({kind}), so it cannot be concatenated"
        fix = 'Return one value per example, or choose parallel(..., join="mean"), "sum" or "stack"'
        raise InvalidArgument(where, [Problem(f"output{path}", _kind(first), rule, fix)])
    if follows_batch:
        return _concat(replicas)
    if join == "stack":
        return tf.stack(replicas)
    if len(replicas) == 1:
        return _concat(replicas)
    if not (first.dtype.is_floating or first.dtype.is_complex or (join == "sum" and first.dtype.is_integer)):
        rule = f"cannot be joined by {join}: it is not a number that can be averaged"
        raise InvalidArgument(
            where, [Problem(f"output{path}", first.dtype.name, rule, 'Choose join="stack"')]
        )
    values = replicas if join == "sum" else _shared_out(replicas, devices, counts)
    return reduce([[value] for value in values], devices, order_for(devices))[0]


def _shared_out(replicas: Sequence[Any], devices: Sequence[str], counts: Sequence[Any]) -> list[Any]:
    """Each output times the share of its slice, so that the sum is the mean over all examples."""
    # Shares, and not counts: a count times a value overflows in half precision.
    # In double precision, which a Python float given to tf.cast would not keep.
    total = tf.cast(sum(counts), tf.float64)
    values = []
    for device, count, value in zip(devices, counts, replicas, strict=True):
        with tf.device(device):
            values.append(tf.cast(tf.cast(count, tf.float64) / total, value.dtype) * value)
    return values


def _kind(tensor: Any) -> str:
    return f"{tensor.dtype.name}{list(tensor.shape) if tensor.shape.rank else ''}"


def _concat(replicas: Sequence[Any]) -> Any:
    if len(replicas) == 1:
        return tf.nest.map_structure(tf.identity, replicas[0], expand_composites=True)
    if isinstance(replicas[0], tf.SparseTensor):
        return _concat_sparse(replicas)
    return tf.concat(replicas, axis=0)


def _concat_sparse(parts: Sequence[tf.SparseTensor]) -> tf.SparseTensor:
    """What tf.sparse.concat does, which passes no gradient."""
    rows = [part.dense_shape[0] for part in parts]
    starts = tf.unstack(tf.cumsum(rows, exclusive=True), num=len(parts))
    indices = [
        tf.concat([part.indices[:, :1] + start, part.indices[:, 1:]], axis=1)
        for part, start in zip(parts, starts, strict=True)
    ]
    shape = tf.concat([[tf.add_n(rows)], parts[0].dense_shape[1:]], axis=0)
    return tf.SparseTensor(tf.concat(indices, 0), tf.concat([part.values for part in parts], 0), shape)
