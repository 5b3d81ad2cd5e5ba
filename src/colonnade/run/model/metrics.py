"""Keras metrics (`compile(metrics=)`) over several devices: noted by slice, updated once by batch.

A replica that updated a metric would count its slice like a batch. So while a replica calls the model, whose
layers may have metrics, and computes its loss, updates are only noted; they are made once, with what the
whole batch would have given.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakSet

import keras
import numpy as np
import tensorflow as tf

from colonnade.run.trace.captures import ancestors
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.ops import calling_code

# In place of a tensor among what a metric is called with, and of the number of examples.
TENSOR, ROWS = object(), object()
# What slices give of a tensor (see `_Numbers.kind_of`).
SAME, OF_EXAMPLES, OF_SLICE = "same", "of examples", "of slice"


@dataclass(frozen=True)
class MetricCalls:
    """What metrics were called with in one trace, but for the tensors.

    Args:
        calls: a metric, and its arguments, with `TENSOR` where there is one.
        rows: how many examples the trace had, if that is known.
        tensors: of each of those.
    """

    calls: tuple[tuple[Any, Any], ...] = ()
    rows: int | None = None
    tensors: tuple["Given", ...] = ()

    def leaves(self) -> list[Any]:
        """All arguments, one after the other."""
        return [leaf for _, given in self.calls for leaf in tf.nest.flatten(given)]


class Given(NamedTuple):
    """What a trace knows of a tensor that a metric is given."""

    size: int | None  # the first dim, if it has one that is known
    same: bool  # whether it is a whole number that is the same for all slices: nothing of a batch is in it


class DeferredMetrics:
    """A scope in which `update_state` of some metrics notes what it is called with.

    What is noted are tensors (`values`), to be returned by the replica, and the calls themselves (`noted`),
    which are known once it is traced. Metrics are called as often and in the same order for every slice.

    Args:
        metrics: those that note.
        rows: how many examples the slice has.
    """

    def __init__(self, metrics: Sequence[Any], rows: int | None = None) -> None:
        self._metrics, self._rows = metrics, rows
        self._calls: list[tuple[Any, Any]] = []
        self._given: list[Given] = []
        self.values: list[Any] = []
        self._graph: Any = None
        self._scope = ExitStack()

    def __enter__(self) -> "DeferredMetrics":
        self._calls, self._given, self.values = [], [], []
        self._graph = tf.compat.v1.get_default_graph()
        for metric in self._metrics:
            vars(metric)["update_state"] = unconverted(self._noting(metric))
        self._scope.enter_context(counted_rows())
        return self

    def __exit__(self, *_: object) -> None:
        self._scope.close()
        for metric in self._metrics:
            del vars(metric)["update_state"]

    @property
    def noted(self) -> MetricCalls:
        """What was called, without anything of the graph in which it was."""
        return MetricCalls(tuple(self._calls), self._rows, tuple(self._given))

    def _noting(self, metric: Any) -> Callable[..., None]:
        original = metric.update_state

        def update_state(*args: Any, **kwargs: Any) -> Any:
            # Values of a loop stay inside of it; and Keras calls layers in graphs of its own, to see shapes.
            if tf.compat.v1.get_default_graph() is not self._graph:
                return original(*args, **kwargs)
            if not getattr(metric, "built", True):  # else nobody could ask for its result meanwhile
                metric.build(*args[:2])
            given = as_with_keras(args, kwargs, self._rows)
            self._calls.append((metric, tf.nest.map_structure(self._kept, given)))
            return None

        return update_state

    def _kept(self, value: Any) -> Any:
        if isinstance(value, tf.Tensor) and known_number(value) is not None:
            return value.dtype.as_numpy_dtype(known_number(value))
        if value is None or value is ROWS or isinstance(value, bool | str) or known_number(value) is not None:
            return value
        tensor = tf.convert_to_tensor(value)
        same = tensor.dtype.is_integer and is_of_variables(tensor)
        self._given.append(Given(tensor.shape[0] if tensor.shape.rank else None, same))
        self.values.append(tensor)
        return TENSOR

    def make(
        self,
        slices: Sequence[Sequence[Any]],
        rows: Sequence[Any],
        whole: Callable[[], MetricCalls] | None = None,
    ) -> None:
        """Update the metrics (see `update`), where all slices called them as this one does."""
        update([self.noted] * len(slices), slices, rows, whole)


def update(
    noted: Sequence[MetricCalls],
    slices: Sequence[Sequence[Any]],
    rows: Sequence[Any],
    whole: Callable[[], MetricCalls] | None = None,
) -> None:
    """Update metrics with what the whole batch gives.

    Args:
        noted: the calls of each slice.
        slices: the tensors that each was given.
        rows: how many examples each has, as tensors.
        whole: the calls in a trace of the whole batch, for numbers of which slices do not tell what they are.
    """
    numbers = _Numbers(noted, tf.add_n(list(rows)), whole)
    joined = iter(
        [_joined(parts, rows, numbers.kind_of(i)) for i, parts in enumerate(zip(*slices, strict=True))]
    )
    place = 0
    for metric, given in noted[0].calls:
        leaves = []
        for leaf in tf.nest.flatten(given):
            value = next(joined) if leaf is TENSOR else numbers.of_batch(place)
            leaves.append(tf.constant(value) if isinstance(value, np.generic) else value)
            place += 1
        args, kwargs = tf.nest.pack_sequence_as(given, leaves)
        metric.update_state(*args, **kwargs)


class _Numbers:
    """What traces know: numbers, one that is the same for all or how many examples there are; and tensors."""

    def __init__(
        self, noted: Sequence[MetricCalls], total: Any, whole: Callable[[], MetricCalls] | None
    ) -> None:
        self._leaves, self._rows = [each.leaves() for each in noted], [each.rows for each in noted]
        self._total, self._whole, self._noted = total, whole, noted

    def kind_of(self, place: int) -> str:
        """What slices give of a tensor: the same all, values of their examples, or something of their own."""
        own = [each.tensors[place] for each in self._noted]
        if len(own) == 1 or own[0].same:
            return SAME
        sizes = [given.size for given in own]
        whole = None
        if self._rows == self._rows[:1] * len(own) and len(set(sizes)) == 1 and self._whole is not None:
            # Slices of one size do not show whether a dim is that of the examples.
            whole = self._whole().tensors[place].size if grows(sizes, self._rows) else None
        return OF_EXAMPLES if grows([*sizes, whole], [*self._rows, self._rows_of_all]) else OF_SLICE

    @property
    def _rows_of_all(self) -> int | None:
        known = [rows for rows in self._rows if rows is not None]
        return sum(known) if len(known) == len(self._rows) else None

    def of_batch(self, place: int) -> Any:
        own = [leaves[place] for leaves in self._leaves]
        if own[0] is ROWS:
            return self._total if len(own) > 1 or self._rows[0] is None else self._rows[0]
        if not isinstance(own[0], np.generic) or len(own) == 1 or own != self._rows:
            return own[0]
        if len(set(own)) == 1 and self._whole is not None:  # it may be a number that happens to be that one
            return self._whole().leaves()[place]
        return tf.cast(self._total, own[0].dtype)


@contextmanager
def counted_rows() -> Iterator[None]:
    """While a slice is traced: who asks `keras.ops.shape` is remembered (see `as_with_keras`)."""
    original = keras.ops.shape

    def shape(x: Any) -> Any:
        _ASKED.add(calling_code())
        return original(x)

    keras.ops.shape = unconverted(shape)
    try:
        yield
    finally:
        keras.ops.shape = original


# Code of the user's that has asked for a shape by `keras.ops.shape`.
_ASKED: WeakSet[Any] = WeakSet()


def as_with_keras(args: tuple[Any, ...], kwargs: dict[str, Any], rows: int | None) -> tuple[Any, Any]:
    """Arguments of `update_state`, with what Keras has where the number of rows is given.

    Keras's traces are for any number of rows. To them `keras.ops.shape` gives a tensor, here `ROWS`; and
    `x.shape[0]` is None, so that as a weight it is none: so Keras itself calls the means of the losses of
    several outputs. Here both are the same whole number, and only who calls tells them apart.
    """
    asked = calling_code() in _ASKED

    def given(value: Any, is_weight: bool) -> Any:
        if type(value) is not int or rows not in (None, value):
            return value
        if asked:
            return value if rows is None else ROWS
        return None if is_weight else value

    kept = tuple(given(value, i > 0) for i, value in enumerate(args))
    return kept, {name: given(value, True) for name, value in kwargs.items()}


def known_number(value: Any) -> int | float | None:
    """A number of which a trace knows how much it is."""
    if isinstance(value, bool):
        return None
    if isinstance(value, np.number):
        number: int | float = value.item()
        return number
    if isinstance(value, int | float):
        return value
    if not isinstance(value, tf.Tensor) or value.shape.rank != 0 or not tf.is_symbolic_tensor(value):
        return None
    static = tf.get_static_value(value) if value.dtype.is_floating or value.dtype.is_integer else None
    return None if static is None else np.asarray(static).item()


def is_of_variables(tensor: Any) -> bool:
    """Whether a tensor of a trace is made of variables, and of nothing that the trace is given or draws.

    What is made of constants alone may be the number of examples, which a trace knows.
    """
    if not tf.is_symbolic_tensor(tensor):
        return False
    inputs = {source.op.name: source.dtype == tf.resource for source in tensor.graph.inputs}
    ops = ancestors(tensor.op)
    used = [inputs[op.name] for op in ops if op.name in inputs]
    return bool(used) and all(used) and not any("Random" in op.type for op in ops)


def grows(sizes: Sequence[int | None], rows: Sequence[int | None]) -> bool:
    """Whether first dims are as many times the number of examples in all slices, as far as that is known."""
    known = [(n, of) for n, of in zip(sizes, rows, strict=True) if n is not None and of]
    return len({n / of for n, of in known}) <= 1 and all(n % of == 0 for n, of in known)


def _joined(parts: Sequence[Any], rows: Sequence[Any], kind: str) -> Any:
    """One value per example, or a mean over them, or how many there are."""
    if kind == SAME:
        return parts[0]
    number = parts[0].dtype.is_floating or parts[0].dtype.is_integer
    if parts[0].shape.rank != 0 and (kind == OF_EXAMPLES or not number):
        return tf.concat(parts, axis=0)
    if not parts[0].dtype.is_floating:
        return tf.add_n(list(parts))
    total = tf.cast(tf.add_n(list(rows)), parts[0].dtype)
    return tf.add_n([part * (tf.cast(n, part.dtype) / total) for part, n in zip(parts, rows, strict=True)])
