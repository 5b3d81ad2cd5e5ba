"""A step of a model's own (`train_step`, `test_step`) as one replica of several makes it.

The user's code is traced as it is. Where it hands gradients to an optimizer, those of all replicas are added
first, each by the size of its slice, so every replica makes the one update in its own copy of the variables
and goes on with the new values. Where it updates a metric, that is given what the whole batch gives. Sums
over the replicas are marks in the trace (see `trace.replica_context`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.model.whole_batch import gathered
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.replica_context import TracingContext

# There is one class of optimizers for all threads: one trace at a time may exchange its methods.
_EXCHANGING = threading.RLock()


class ReplicaScope:
    """What a replica does in place of what the user's code asks for.

    Args:
        rows: how many examples its slice has.
        total: how many the batch has.
        positions: the places of its examples in the batch.
    """

    def __init__(self, rows: int, total: int, positions: Any) -> None:
        self._rows, self._total, self._positions = rows, total, positions
        self._graph: Any = None  # of the trace
        self._inside = False  # whether what is called now was called by what is exchanged
        # What optimizers were given, in order: the path of a variable, and its gradient.
        self.gradients: list[tuple[str, Any]] = []

    @contextmanager
    def entered(self, metrics: Sequence[Any]) -> Iterator["ReplicaScope"]:
        """While the user's step is traced."""
        self._graph = tf.compat.v1.get_default_graph()
        with _EXCHANGING, ExitStack() as stack:
            for kind in _with_apply():
                stack.enter_context(_exchanged(kind, "apply", self._applying(vars(kind)["apply"])))
            for metric in metrics:
                stack.enter_context(_updating(metric, self._outermost(metric.update_state)))
            yield self

    def _applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def summed_first(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self._inside:  # an optimizer inside of another one
                return apply(optimizer, grads, trainable_variables)
            self._check_place("apply", optimizer.name)
            grads = list(grads)
            variables = trainable_variables or [None] * len(grads)
            named = [_path(v, f"{optimizer.name}'s variable {i}") for i, v in enumerate(variables)]
            grads = [self._sum(g, name) for g, name in zip(grads, named, strict=True)]
            self.gradients += [(n, g) for n, g in zip(named, grads, strict=True) if g is not None]
            return self._called(apply, optimizer, grads, trainable_variables)

        return unconverted(summed_first)

    def _outermost(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def whole_first(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return update(*args, **kwargs)
            self._check_place("update_state", "a metric")
            args, kwargs = tf.nest.map_structure(self._of_batch, (args, kwargs))
            return self._called(update, *args, **kwargs)

        return unconverted(whole_first)

    def _check_place(self, method: str, value: str) -> None:
        if tf.compat.v1.get_default_graph() is not self._graph:
            rule = "is called inside a loop, a branch or a tf.function, where a trace cannot be cut"
            fix = "Call it in the step itself: instead of a branch, multiply gradients by 0 or 1"
            raise InvalidArgument("fit()", [Problem(method, value, rule, fix)])

    def _called(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        assert isinstance(context, TracingContext)
        self._inside = True
        try:
            with context.summed():
                return fn(*args, **kwargs)
        finally:
            self._inside = False

    def _sum(self, gradient: Any, name: str) -> Any:
        """The gradient of the whole batch."""
        if gradient is None:
            return None
        if not isinstance(gradient, tf.IndexedSlices):
            return self._mean(tf.convert_to_tensor(gradient))
        lookups = gradient.indices.shape.num_elements()
        if lookups is None or lookups % self._rows:
            rule = "has a sparse gradient, and its rows are not as many for each example, so that nobody can "
            rule += "tell whose they are"
            fix = "Read the table as a whole: tf.gather(tf.convert_to_tensor(table), ids)"
            raise InvalidArgument("fit()", [Problem("variable", name, rule, fix)])
        values, indices = (
            self._rows_of_all(part, lookups // self._rows)
            for part in (gradient.values * tf.constant(self._share, gradient.dtype), gradient.indices)
        )
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def _rows_of_all(self, rows: Any, each: int) -> Any:
        """Rows of which every example has some, those of all examples."""
        shape = tf.shape(rows)[1:]
        by_example = tf.reshape(rows, tf.concat([[self._rows, each], shape], 0))
        whole = gathered(by_example, self._positions, self._total)
        return tf.reshape(whole, tf.concat([[self._total * each], shape], 0))

    @property
    def _share(self) -> float:
        return self._rows / self._total

    def _mean(self, value: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value * tf.constant(self._share, value.dtype))

    def _of_batch(self, value: Any) -> Any:
        """What the whole batch gives where a slice gives this."""
        if isinstance(value, int) and not isinstance(value, bool) and value == self._rows:
            return self._total
        if not isinstance(value, tf.Tensor):
            return value
        if value.shape.rank and value.shape[0] == self._rows:
            return gathered(value, self._positions, self._total)
        if value.dtype.is_floating:
            return self._mean(value)
        if value.shape.rank == 0 and value.dtype.is_integer:  # how many examples there are
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
        rule = f"is given {value.dtype.name} of shape {value.shape}, of which the whole batch has no sum"
        fix = "Give it one value for each example, or the mean over them"
        raise InvalidArgument("fit()", [Problem("update_state", "a metric", rule, fix)])


def _path(variable: Any, otherwise: str) -> str:
    return otherwise if variable is None else str(getattr(variable, "path", variable.name))


def _with_apply() -> list[type]:
    """The classes of optimizers that have an `apply` of their own."""
    above = [kind for kind in keras.optimizers.Optimizer.__mro__ if "apply" in vars(kind)]
    return [*above[:1], *(k for k in _below(keras.optimizers.Optimizer) if "apply" in vars(k))]


def _below(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for other in subclasses:
        yield other
        yield from _below(other)


@contextmanager
def _exchanged(owner: Any, name: str, other: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _updating(metric: Any, update: Callable[..., Any]) -> Iterator[None]:
    """An attribute of the metric itself, past Keras's own way of setting attributes."""
    vars(metric)["update_state"] = update
    try:
        yield
    finally:
        del vars(metric)["update_state"]
