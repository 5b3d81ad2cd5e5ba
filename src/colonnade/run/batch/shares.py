"""Decides how many rows of a batch each device gets where faster ones get more, from the time they take."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import sizes

# Measured for so many steps before sizes are changed; then twice as long, and so on.
FIRST_WINDOW = 4
# Sizes are changed if that makes a step shorter by this part; a change costs a trace.
WORTH = 0.1
# Devices whose speeds differ by less than this part get the same size, which one trace serves.
ALIKE = 0.1


class MeasuredShares:
    """Sizes of slices in proportion to the speed that was measured, changed rarely.

    Args:
        num_devices: of all machines that train together.
        first: the number of the first one of this machine.
    """

    def __init__(self, num_devices: int, first: int = 0) -> None:
        self._first = first
        self.speeds = np.ones(num_devices)  # in rows per second, or just equal; only their ratios count
        self._window = FIRST_WINDOW
        with tf.device("/device:CPU:0"):
            # For each device: steps, seconds and rows since the last change.
            zeros = tf.zeros([3, num_devices], tf.float64)
            self._measured = tf.Variable(zeros, trainable=False, name="measured")
        self._warm = False

    def counts(self, total: int) -> tuple[int, ...]:
        """Rows for each device."""
        if total < len(self.speeds):
            return sizes(total, len(self.speeds))
        return proportional(total, self.speeds)

    def of_step(self, seconds: Sequence[Any], counts: Sequence[int]) -> Any:
        """In the graph of a step: how long the devices of this machine took for so many rows.

        What is to be noted is the sum over the machines.
        """
        if not counts:
            return tf.zeros([3, len(self.speeds)], tf.float64)
        own = tf.stack(
            [tf.ones([len(counts)], tf.float64), tf.stack(seconds), tf.constant(counts, tf.float64)]
        )
        behind = len(self.speeds) - self._first - len(counts)
        return tf.pad(own, [[0, 0], [self._first, behind]])

    def note(self, of_step: Any) -> None:
        self._measured.assign_add(of_step)

    def reconsider(self) -> None:
        """Between calls: change the sizes, if that is worth it."""
        made, seconds, rows = self._measured.numpy()
        steps = made.max()  # a small batch has rows for some devices only
        if not self._warm:
            # A first call of a graph takes longer, and not on all devices alike.
            self._warm = bool(steps)
            self._measured.assign(tf.zeros_like(self._measured))
            return
        if steps < self._window or not (seconds > 0).all():
            return
        speeds = alike(rows / seconds)
        now = (rows / speeds).max()
        if now > (1 + WORTH) * rows.sum() / speeds.sum():
            self.speeds, self._warm = speeds, False
        self._window *= 2
        self._measured.assign(tf.zeros_like(self._measured))


def proportional(total: int, weights: Sequence[float] | np.ndarray) -> tuple[int, ...]:
    """Whole numbers that add up to `total`, in proportion to the weights, none of them 0.

    >>> proportional(100, [4.0, 1.0]), proportional(10, [100.0, 1.0, 1.0])
    ((80, 20), (8, 1, 1))
    """
    exact = np.asarray(weights, float) / np.sum(weights) * total
    counts = np.maximum(np.floor(exact).astype(int), 1)
    while counts.sum() < total:
        counts[np.argmax(exact - counts)] += 1
    while counts.sum() > total:
        counts[np.argmax(np.where(counts > 1, counts - exact, -np.inf))] -= 1
    return tuple(int(count) for count in counts)


def alike(speeds: np.ndarray) -> np.ndarray:
    """Speeds with those that are nearly equal made equal.

    >>> alike(np.array([1.0, 4.0, 1.04])).tolist()
    [1.02, 4.0, 1.02]
    """
    levelled = speeds.astype(float)
    order = list(np.argsort(speeds))
    while order:
        group = [i for i in order if speeds[i] <= speeds[order[0]] * (1 + ALIKE)]
        levelled[group] = speeds[group].mean()
        order = order[len(group) :]
    return levelled
