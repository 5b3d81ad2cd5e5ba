"""Keeps small whole numbers as tensors, because making one anew for every call takes too long."""

from typing import Any

import tensorflow as tf

BLOCK = 64


class IntTensors:
    """Tensors of whole numbers; many are made at once, because one takes a tenth of a small update."""

    def __init__(self) -> None:
        self._first = 0
        self._made: list[Any] = []

    def __getitem__(self, number: int) -> Any:
        if not 0 <= number - self._first < len(self._made):
            self._first = number
            self._made = tf.unstack(tf.range(number, number + BLOCK, dtype=tf.int64))
        return self._made[number - self._first]
