"""Adds up gradients, losses and metrics over the slices of a step, before anything is divided or written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.run.engine.gradients import divisor
from colonnade.run.engine.guard import Guard
from colonnade.run.step.objective import Share


@dataclass(frozen=True)
class SliceSums:
    """Sums over slices, and a row for each of them."""

    loss: Any
    metrics: dict[str, Any]
    weight: Any  # the sum of weights, or None
    replicas: Any  # the mean loss of each slice
    health: Any  # for each slice, a number for each gradient that must be finite

    @classmethod
    def of(cls, shares: Sequence[Share], counts: Sequence[int], total: int, guard: Guard) -> "SliceSums":
        """Those of slices of so many rows, of a batch of `total`; a share beyond the counts is of none."""
        weight = None if shares[0].weight is None else tf.add_n([share.weight for share in shares])
        loss = tf.add_n([share.loss for share in shares])
        metrics = {name: tf.add_n([share.metrics[name] for share in shares]) for name in shares[0].metrics}
        means = [_own_mean(share, count, total) for share, count in zip(shares, counts, strict=False)]
        health = [guard.health(share) for share in shares]
        replicas = tf.stack(means) if means else tf.zeros([0], loss.dtype)
        return cls(loss, metrics, weight, replicas, tf.stack(health)[: len(counts)])

    def means(self) -> tuple[Any, dict[str, Any], Any]:
        """Loss and metrics of the batch, and what gradients are divided by, if by anything."""
        if self.weight is None:
            return self.loss, self.metrics, None
        weight = divisor(self.weight)
        return self.loss / weight, {name: value / weight for name, value in self.metrics.items()}, weight


def _own_mean(share: Share, count: int, total: int) -> Any:
    if share.weight is None:
        return share.loss * (total / count)
    return tf.math.divide_no_nan(share.loss, share.weight)  # a slice may have no weight at all
