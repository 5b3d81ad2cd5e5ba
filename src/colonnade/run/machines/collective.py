"""Sums over machines, and the rows of all, as ops for graphs and loops in them.

Each machine takes part with its host: arrays go there, and round the ring of machines (see `clusters.ring`).
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.hardware.clusters.ring import Ring

HOST = "/device:CPU:0"
# What sums are made in; others are carried in one that holds all their values.
SUMMED = (tf.float32, tf.float64, tf.int32, tf.int64)


class Collective:
    """What a ring of machines can do, in graphs."""

    def __init__(self, ring: Ring) -> None:
        self._ring, self._numbers = ring, itertools.count(1)
        with tf.init_scope(), tf.device(HOST):
            # In a graph, what reads and writes this variable goes in the order in which it was built. There
            # is one for all: of two messages that pass each other each would be taken for the other.
            self._turn = tf.Variable(0.0, trainable=False, name="order_of_messages")

    def sum(self, tensor: Any) -> Any:
        """The sum over the machines of a vector that has the same static size on all."""
        return tf.ensure_shape(self._in_turn(self._ring.sum, tensor), tensor.shape)

    def each(self, tensor: Any) -> Any:
        """A vector that has the same static size on all machines: a row of each."""
        rows = self._in_turn(lambda own: np.stack(self._ring.every(own)), tensor)
        return tf.ensure_shape(rows, [self._ring.size, *tensor.shape])

    def rows(self, tensor: Any) -> Any:
        """The rows of all machines, one after the other; each may have another number of them."""
        rows = self._in_turn(lambda own: np.concatenate(self._ring.every(own)), tensor)
        return tf.ensure_shape(rows, [None, *tensor.shape[1:]])

    def _in_turn(self, does: Callable[[Any], Any], tensor: Any) -> Any:
        """What a function of an array returns, after all that was asked of the ring before."""

        def call(turn: Any, array: Any) -> Any:
            return turn, does(array)

        with tf.device(HOST):
            turn, result = tf.numpy_function(
                call, [self._turn.read_value(), tensor], [tf.float32, tensor.dtype], name=self._name(tensor)
            )
            with tf.control_dependencies([self._turn.assign(turn, read_value=False)]):
                return tf.identity(result)

    def _name(self, tensor: Any) -> str:
        """By which a profile knows a message, and what this machine puts in; 0 bytes where that varies."""
        elements = tensor.shape.num_elements() if tensor.shape.is_fully_defined() else 0
        return f"machines_{next(self._numbers)}_bytes_{elements * tensor.dtype.size}"


def carried(tensor: Any) -> Any:
    """A tensor as it travels."""
    if tensor.dtype in SUMMED:
        return tensor
    return tf.cast(tensor, tf.float32 if tensor.dtype.is_floating else tf.int64)


def can_travel(dtype: tf.DType) -> bool:
    """Whether values of a kind can be summed over machines."""
    return dtype in SUMMED or dtype.is_floating or dtype.is_integer or dtype.is_bool


def packed(tensors: Sequence[Any]) -> dict[tf.DType, list[int]]:
    """Which tensors travel together: those of one dtype."""
    groups: dict[tf.DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(i)
    return groups
