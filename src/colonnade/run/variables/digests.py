"""Tells which variables have changed since one last looked, without sending or keeping their values.

A digest is a number of 64 bits, made on the device of the variable: the sum of its elements' bits, each times
a random odd number of its own. A change of one element always changes it; of several, all but once in
billions of times. Only digests go to the host.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.trace.concrete import unconverted

# So many elements of a device at a time, one piece after the other: what is computed on the way takes memory.
PIECE = 2**22
SEED = (20, 26)
AS_WHOLE = {1: tf.uint8, 2: tf.int16, 4: tf.int32, 8: tf.int64}


class Digests:
    """The digests of some variables."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = list(variables)
        self._made = tf.function(unconverted(self._make), autograph=False)

    def now(self) -> Any:
        """Of each variable, in their order."""
        return self._made().numpy() if self._variables else np.zeros([0], "int64")

    def _make(self) -> Any:
        by_device: dict[str, list[int]] = {}
        for number, variable in enumerate(self._variables):
            by_device.setdefault(variable.device, []).append(number)
        stacks = []
        for device, numbers in by_device.items():
            with tf.device(device):
                stacks.append(tf.stack(_digests([(self._variables[n].read_value(), n) for n in numbers])))
        with tf.device("/device:CPU:0"):
            order = [number for numbers in by_device.values() for number in numbers]
            return tf.gather(tf.concat(stacks, axis=0), np.argsort(order))


def equal(one: Any, other: Any) -> bool:
    """Whether two tensors are the same; what is not a number is equal to itself."""
    if one.shape != other.shape:
        return False
    neither = tf.not_equal(one, one) & tf.not_equal(other, other)
    return bool(tf.reduce_all(tf.equal(one, other) | neither))


def can_digest(variable: tf.Variable) -> bool:
    """Whether a variable has bits that can be added."""
    known = variable.shape.is_fully_defined()
    return known and (variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_bool)


def _digests(values: Sequence[tuple[Any, int]]) -> list[Any]:
    """Of values on one device, each with the number of its variable."""
    made, before = [], list[Any]()
    for value, number in values:
        flat, total = tf.reshape(value, [-1]), tf.zeros([], tf.int64)
        for start in range(0, flat.shape[0], PIECE):
            # TensorFlow would begin all pieces at once, and hold what each of them computes on the way.
            with tf.control_dependencies(before):
                total += _piece(flat, start, number)
            before = [total]
        made.append(total)
    return made


def _piece(flat: Any, start: int, number: int) -> Any:
    """What some elements add to the digest of a variable."""
    piece = tf.identity(flat) if flat.shape[0] <= PIECE else flat[start : start + PIECE]
    if piece.dtype.is_floating:
        # Last of all: cards slice and reshape whole numbers of 32 bits in the memory of the host.
        piece = tf.bitcast(piece, AS_WHOLE[piece.dtype.size])
    piece = tf.cast(piece, tf.int64)
    factors = tf.random.stateless_uniform(
        piece.shape, (SEED[0] + number, SEED[1] + start), minval=None, maxval=None, dtype=tf.int64
    )
    return tf.reduce_sum(piece * (2 * factors + 1))
