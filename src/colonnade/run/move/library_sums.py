"""Sums gradients by the cards' own library (NCCL), through TensorFlow's collectives, inside a step's graph.

Every device gives a bucket and gets the sum of all of them. What TensorFlow asks for:

    an ordering token for each device, made once      with one for all, or none, devices wait for each other
    a key of its own for each bucket of each graph    two sums of one key are taken for the same
    nothing is broken off                             afterwards all collectives of the process are refused
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from colonnade.hardware.probes import collective
from colonnade.run.move.buckets import Buckets, by_dtype
from colonnade.run.move.num_bytes import num_bytes

# Bytes of a bucket: a library like this is at its best with large messages, and each costs a launch.
LARGEST = 32 * 2**20
SUMMED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def can_sum(tensors: Sequence[Any]) -> bool:
    """Whether the library knows the dtypes of these."""
    return all(tensor.dtype in SUMMED for tensor in tensors)


def is_broken(error: tf.errors.OpError) -> bool:
    """Whether TensorFlow tells of a collective that was broken off or did not end in time.

    After such a one it may also say no more than that a call was cancelled before it began.
    """
    return isinstance(error, tf.errors.CancelledError) or "collective" in error.message.lower()


class LibrarySums:
    """Sums over some devices, each a card of its own. To be made in eager code: it has variables."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        self._tokens = collective.tokens(devices)

    def sums(
        self,
        rows: Sequence[Sequence[Any]],
        *,
        largest: int = LARGEST,
        made: Sequence[int] = (),
        first: bool = False,
    ) -> list[list[Any]]:
        """For every device the sums of dense gradients, each of one known shape and dtype on all.

        Args:
            rows: for each device its gradients.
            largest: bytes of a bucket.
            made: for each gradient when it is there, by some count.
            first: whether the graph that is being made is for the first steps on such batches.
        """
        sums: list[list[Any]] = [[None] * len(rows[0]) for _ in rows]
        for group in by_dtype(rows[0], range(len(rows[0])), made):
            tensors = [rows[0][i] for i in group]
            count = -(-sum(map(num_bytes, tensors)) // largest)
            buckets = Buckets(tuple(tuple(tensor.shape.as_list()) for tensor in tensors), count)
            keys = [collective.next_key() for _ in buckets.pieces]
            for own, row, device, token in zip(sums, rows, self._devices, self._tokens, strict=True):
                with tf.device(device):
                    held = buckets.packed([row[i] for i in group])
                    patience = collective.AT_FIRST if first else collective.PATIENCE
                    totals = [
                        collective.summed(vector, self._devices, key, token, patience)
                        for vector, key in zip(held, keys, strict=True)
                    ]
                    for i, total in zip(group, buckets.unpacked(totals), strict=True):
                        own[i] = total
        return sums
