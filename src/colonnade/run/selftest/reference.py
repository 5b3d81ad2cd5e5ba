"""Training on one device in plain Keras, with which the self-test compares.

Nothing of the engine is used here, so that a mistake of its cannot be on both sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

# A difference up to this many times what one device does to itself is rounding.
MARGIN = 4.0
# Rounding that the comparison of one device with itself may miss, in steps of the float at hand.
FLOOR, PER_UPDATE = 32.0, 8.0
SINGLE = 2.0**-23

BatchList = Sequence[tuple[Any, ...]]


@dataclass(frozen=True)
class Training:
    """Where a training began and ended: the values of its variables, and the loss of every step."""

    start: list[Any]
    end: list[Any]
    losses: Any


def train(
    loss: Callable[..., Any],
    optimizer: Any,
    variables: Sequence[Any],
    batches: BatchList,
    *,
    device: str,
    slices: int = 1,
) -> Training:
    """One step per batch on one device; with `slices`, the gradient is added up from so many."""
    start = [variable.numpy() for variable in variables]
    optimizer.build(variables)

    @tf.function(autograph=False)
    def step(*batch: Any) -> Any:
        rows = batch[0].shape[0]
        parts = [np.array_split(np.arange(rows), slices)[i] for i in range(min(slices, rows))]
        total, gradients = tf.constant(0.0), [tf.zeros(variable.shape) for variable in variables]
        for part in parts:
            with tf.GradientTape() as tape:
                losses = loss(*(tensor[part[0] : part[-1] + 1] for tensor in batch))
                mine = tf.reduce_sum(tf.cast(losses, tf.float32)) / rows
                scaled = optimizer.scale_loss(mine)
            added = tape.gradient(scaled, variables)
            gradients = [a + tf.convert_to_tensor(b) for a, b in zip(gradients, added, strict=True)]
            total += mine
        optimizer.apply(gradients, variables)
        return total

    with tf.device(device):
        losses = [float(step(*(tf.constant(array) for array in batch))) for batch in batches]
    return Training(start, [variable.numpy() for variable in variables], np.asarray(losses))


def permuted(batches: BatchList) -> list[tuple[Any, ...]]:
    """The same batches with the examples of each in another order."""
    rng = np.random.default_rng(1)
    orders = [rng.permutation(len(batch[0])) for batch in batches]
    return [tuple(array[order] for array in batch) for order, batch in zip(orders, batches, strict=True)]


@dataclass(frozen=True)
class Gap:
    """The largest difference between two trainings, measured in what rounding may do."""

    what: str
    difference: float
    allowed: float

    @property
    def closed(self) -> bool:
        return self.difference <= self.allowed

    def __str__(self) -> str:
        return f"largest difference {self.difference:.1e}, allowed {self.allowed:.1e} ({self.what})"


def gap(expected: Training, again: Training, several: Training, epsilon: float = SINGLE) -> Gap:
    """How far `several` is from `expected`, where `again` is what one device makes of it another way.

    Compared are the updates, not the values: a variable that was hardly moved would hide a lost
    gradient. Of what one device does to itself, only as much counts as can be rounding.

    Args:
        expected: the training on one device.
        again: the same on one device, with the examples in another order and the batch in slices.
        several: the training on several devices.
        epsilon: the step of the coarsest float that takes part.
    """
    gaps = [
        _gap("loss", 0.0 * expected.losses, expected.losses, again.losses, several.losses, epsilon),
        *(
            _gap(f"variable {i}", start, expected.end[i], again.end[i], several.end[i], epsilon)
            for i, start in enumerate(expected.start)
        ),
    ]
    return max(gaps, key=lambda each: each.difference / each.allowed)


def gap_of_values(names: Sequence[str], expected: Any, again: Any, several: Any) -> Gap:
    """The same for values that did not begin anywhere, such as outputs and gradients."""
    gaps = [
        _gap(name, 0.0 * a, a, b, c, SINGLE)
        for name, a, b, c in zip(names, expected, again, several, strict=True)
    ]
    return max(gaps, key=lambda each: each.difference / each.allowed)


def _gap(what: str, start: Any, expected: Any, again: Any, several: Any, epsilon: float) -> Gap:
    if several.shape != expected.shape or not all(np.isfinite(a).all() for a in (expected, again, several)):
        return Gap(what, float("inf"), 1.0)
    moved = float(np.abs(expected - start).max())
    noise = min(float(np.abs(again - expected).max()), float(np.sqrt(epsilon)) * moved)
    stored = FLOOR * SINGLE * float(np.abs(expected).max())  # variables are kept in single precision
    allowed = max(MARGIN * noise + stored + PER_UPDATE * epsilon * moved, float(np.finfo("float32").tiny))
    return Gap(what, float(np.abs(several - expected).max()), allowed)
