"""Keras metrics (`compile(metrics=)`) over several devices: noted by slice, updated once by batch.

A replica that updated a metric would count its slice like a batch. So while a replica computes its loss,
updates are only noted; they are made once, with what the whole batch would have given.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.trace.concrete import unconverted


class DeferredMetrics:
    """A scope in which `update_state` of some metrics notes what it is called with.

    What is noted is a list of tensors (`values`), to be returned by the replica. Metrics are called as
    often and in the same order for every slice.
    """

    def __init__(self, metrics: Sequence[Any]) -> None:
        self._metrics = metrics
        self._calls: list[tuple[Any, Any]] = []  # a metric, and which of its arguments are given
        self.values: list[Any] = []

    def __enter__(self) -> "DeferredMetrics":
        self._calls, self.values = [], []
        for metric in self._metrics:
            vars(metric)["update_state"] = unconverted(self._noting(metric))
        return self

    def __exit__(self, *_: object) -> None:
        for metric in self._metrics:
            del vars(metric)["update_state"]

    def _noting(self, metric: Any) -> Callable[..., None]:
        def update_state(*args: Any, **kwargs: Any) -> None:
            if not getattr(metric, "built", True):  # else nobody could ask for its result meanwhile
                metric.build(*args[:2])
            # A number is that of the rows of a slice. Keras has none there: it traces for any number.
            given = tf.nest.map_structure(lambda v: None if isinstance(v, int) else v, (args, kwargs))
            self._calls.append((metric, tf.nest.map_structure(lambda v: v is not None, given)))
            self.values += [tf.convert_to_tensor(v) for v in tf.nest.flatten(given) if v is not None]

        return update_state

    def make(self, slices: Sequence[Sequence[Any]], rows: Sequence[Any]) -> None:
        """Update the metrics, given the values of each slice and how many rows it has."""
        joined = iter([_joined(parts, rows) for parts in zip(*slices, strict=True)])
        for metric, there in self._calls:
            args, kwargs = tf.nest.map_structure(lambda given: next(joined) if given else None, there)
            metric.update_state(*args, **kwargs)


def _joined(parts: Sequence[Any], rows: Sequence[Any]) -> Any:
    """One value per example, or a mean over them, or how many there are."""
    if parts[0].shape.rank != 0:
        return tf.concat(parts, axis=0)
    if not parts[0].dtype.is_floating:
        return tf.add_n(list(parts))
    total = tf.cast(tf.add_n(list(rows)), parts[0].dtype)
    return tf.add_n([part * (tf.cast(n, part.dtype) / total) for part, n in zip(parts, rows, strict=True)])
