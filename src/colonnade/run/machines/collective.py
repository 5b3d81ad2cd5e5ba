"""Collectives of TensorFlow between machines, for graphs and loops in them: sums, and the rows of all.

Each machine takes part with one device, the host. Collectives are told apart by keys, which are given out
in the order in which graphs are built: the same on all machines, because all run the same program.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

HOST = "/device:CPU:0"
GROUP = 1
# What the sum of TensorFlow is made in; others are carried in one that holds all their values.
SUMMED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
LARGEST_POWER = 32  # of two: the rows of a gather
BLOCK = 100_000  # keys for a training
# Parts in which a message travels at the same time.
STREAMS = 4


class Collective:
    """Sums and gathers over a number of machines."""

    def __init__(self, size: int, token: Any = None) -> None:
        self._size = size
        self._first, self._keys = 1, itertools.count(1)
        if token is None:
            with tf.init_scope(), tf.device(HOST):
                # In a graph, what is given this variable goes in the order in which it was built. There is
                # one for all: two collectives that pass each other would wait for ever.
                token = tf.Variable(0.0, trainable=False, name="order_of_collectives")
        self._token = token

    def of_one_training(self) -> "Collective":
        """One with keys of its own, which begin anew with every graph (`restart`).

        Machines with data of their own meet batches of other sizes at other times, and build graphs for them
        by themselves; the collectives of these graphs are the same.
        """
        other = Collective(self._size, self._token)
        other._first = next(itertools.islice(self._keys, BLOCK, None))
        other.restart()
        return other

    def restart(self) -> None:
        """Give out the same keys again."""
        self._keys = itertools.count(self._first - BLOCK + 1)

    def sum(self, tensor: Any) -> Any:
        """The sum over the machines of a tensor that has the same static shape on all."""
        key = next(self._keys)
        with tf.device(HOST):
            total = tf.raw_ops.CollectiveReduceV2(
                name=_name(key, tensor),
                input=tensor,
                group_size=self._size,
                group_key=GROUP,
                instance_key=key,
                ordering_token=[self._token.handle],
                merge_op="Add",
                final_op="Id",
                communication_hint="auto",
                timeout_seconds=0,  # each would hold memory until it has run out; `Meeting` sees who is gone
                max_subdivs_per_device=STREAMS,
            )
        total.set_shape(tensor.shape)
        return total

    def each(self, tensor: Any) -> Any:
        """A vector that has the same static size on all machines: a row of each."""
        key = next(self._keys)
        with tf.device(HOST):
            every = tf.raw_ops.CollectiveGatherV2(
                name=_name(key, tensor),
                input=tensor,
                group_size=self._size,
                group_key=GROUP,
                instance_key=key,
                ordering_token=[self._token.handle],
                communication_hint="auto",
                timeout_seconds=0,
            )
            return tf.reshape(every, [self._size, tensor.shape[0]])

    def rows(self, tensor: Any, counts: Any) -> Any:
        """The rows of all machines, one after the other.

        Args:
            tensor: those of this machine.
            counts: how many rows each machine has.
        """
        first = next(self._keys)
        for _ in range(LARGEST_POWER):
            next(self._keys)
        with tf.device(HOST):
            most = tf.maximum(tf.reduce_max(counts), 1)
            # All must send as many, and as many have a key: so powers of two, of which there are few.
            powers = tf.constant([2**i for i in range(LARGEST_POWER)], tf.int64)
            power = tf.reduce_sum(tf.cast(powers < tf.cast(most, tf.int64), tf.int32))
            size = tf.cast(powers[power], tf.int32)
            rest = size - tf.shape(tensor)[0]
            padded = tf.pad(tensor, [[0, rest], *[[0, 0]] * (tensor.shape.rank - 1)])
            every = tf.raw_ops.CollectiveGatherV2(
                name=_name(first, tensor),
                input=padded,
                group_size=self._size,
                group_key=GROUP,
                instance_key=first + power,
                ordering_token=[self._token.handle],
                communication_hint="auto",
                timeout_seconds=0,
            )
            every = tf.ensure_shape(every, [None, *tensor.shape[1:]])
            return tf.concat([every[m * size : m * size + counts[m]] for m in range(self._size)], axis=0)


def _name(key: int, tensor: Any) -> str:
    """By which a profile knows a message, and what this machine puts in; 0 bytes where that varies."""
    elements = tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0
    return f"machines_{abs(key)}_bytes_{elements * tensor.dtype.size}"


def carried(tensor: Any) -> Any:
    """A tensor as it travels."""
    if tensor.dtype in SUMMED:
        return tensor
    return tf.cast(tensor, tf.int64)


def can_travel(dtype: tf.DType) -> bool:
    """Whether values of a kind can be summed over machines."""
    return dtype in SUMMED or dtype.is_integer or dtype.is_bool


def packed(tensors: Sequence[Any]) -> dict[tf.DType, list[int]]:
    """Which tensors travel together: those of one dtype."""
    groups: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(i)
    return groups
