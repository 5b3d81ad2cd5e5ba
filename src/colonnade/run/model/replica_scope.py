"""A step of a model's own (`train_step`, `test_step`) as one replica of several makes it.

The user's code is traced as it is. Where it hands gradients to an optimizer, those of all replicas are added
first, each by the size of its slice, so every replica makes the one update in its own copy of the variables
and goes on with the new values. Where it updates a metric, that is given what the whole batch gives. Sums
over the replicas are marks in the trace (see `trace.replica_context`); where it differentiates through one,
as through synchronised batch normalisation, what each slice adds counts by its size too.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.model.exchanged import exchanged, updating, with_own
from colonnade.run.model.metrics import ROWS, as_with_keras, counted_rows, is_of_variables, known_number
from colonnade.run.model.whole_batch import gathered
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.replica_context import TracingContext

# Kinds of lookups, as `step.gradient_rows` calls them.
SAME, ONCE, FOLDED, MIXED = "same", "once", "folded", "mixed"
Lookup = tuple[Any, str, tuple[int | None, ...] | None]

# There is one class of optimizers for all threads: one trace at a time may exchange its methods.
_EXCHANGING = threading.RLock()


class AppliedInside(InvalidArgument):
    """Gradients are applied where no trace can be cut."""


class Size(NamedTuple):
    """A size that a trace met."""

    value: int | float | None
    doubtful: bool  # whether it may be of the examples, or one that happens to be so
    usual: bool  # whether it is what most metrics are given: as many values as examples


class ReplicaScope:
    """What a replica does in place of what the user's code asks for.

    Args:
        rows: how many examples its slice has.
        total: how many the batch has.
        positions: the places of its examples in the batch.
        known: by their places in `sizes`, whether sizes grow with the number of examples, as far as is known.
        lookups: of the indices of a sparse gradient those of each lookup, with their kind and the shape that
            they had (see `gradient_rows`); by default each row is that of an example.
        weighs: whether what a tape gives of a slice is made what it gives of the batch, where that is another
            number; else the step does so itself, by how many examples there are.
        at_tape: whether gradients of variables are added where a tape gives them, so that all that is made
            of them is of the whole batch; else where they are applied, which costs less.
    """

    def __init__(
        self,
        rows: int,
        total: int,
        positions: Any,
        known: Mapping[int, bool] | None = None,
        lookups: Callable[[Any], Sequence[Lookup]] = lambda indices: [(indices, "own", None)],
        *,
        weighs: bool = True,
        at_tape: bool = False,
    ) -> None:
        self._weighs, self._at_tape = weighs, at_tape
        self.weighs = False  # whether there was such a number
        self._rows, self._total, self._positions = rows, total, positions
        self._known, self._lookups = known or {}, lookups
        # Numbers that metrics were given, and first dims, in the order in which they were met. Whether they
        # grow with the number of examples, a trace of the whole batch tells.
        self.sizes: list[Size] = []
        self._graph: Any = None  # of the trace
        self._inside = False  # whether what is called now was called by what is exchanged
        # In order, the path of a variable and its gradient: what tapes gave, and what optimizers were given.
        self.gradients: list[tuple[str, Any]] = []
        # Who was given them, and the variables for which, where that was said.
        self.optimizers: list[tuple[Any, list[Any]]] = []
        self.applied: set[str] = set()  # paths of variables that optimizers were given gradients of
        self._scaled: list[Any] = []  # losses that optimizers have scaled

    @contextmanager
    def entered(self, metrics: Sequence[Any]) -> Iterator["ReplicaScope"]:
        """While the user's step is traced."""
        self._graph = tf.compat.v1.get_default_graph()
        with _EXCHANGING, ExitStack() as stack:
            for kind in with_own("apply"):
                stack.enter_context(exchanged(kind, "apply", self._applying(vars(kind)["apply"])))
            for kind in with_own("apply_gradients"):
                own = self._applying_pairs(vars(kind)["apply_gradients"])
                stack.enter_context(exchanged(kind, "apply_gradients", own))
            for kind in with_own("scale_loss"):
                own = self._scaling(vars(kind)["scale_loss"])
                stack.enter_context(exchanged(kind, "scale_loss", own))
            stack.enter_context(_context().differentiating(self._share))
            own = self._differentiating(tf.GradientTape.gradient)
            stack.enter_context(exchanged(tf.GradientTape, "gradient", own))
            for metric in metrics:
                stack.enter_context(updating(metric, self._outermost(metric.update_state)))
            stack.enter_context(counted_rows())
            yield self

    def _applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def summed_first(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            if self._inside:  # an optimizer inside of another one
                return apply(optimizer, grads, trainable_variables)
            grads = self._of_all_slices(optimizer, grads, trainable_variables)
            return self._called(apply, optimizer, grads, trainable_variables)

        return unconverted(summed_first)

    def _applying_pairs(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """Of an optimizer that does something with gradients before it applies them, too."""

        def summed_first(optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return apply(optimizer, grads_and_vars, *args, **kwargs)
            own, variables = zip(*grads_and_vars, strict=True)
            grads = self._of_all_slices(optimizer, own, variables)
            return self._called(apply, optimizer, list(zip(grads, variables, strict=True)), *args, **kwargs)

        return unconverted(summed_first)

    def _of_all_slices(self, optimizer: Any, grads: Any, variables: Any) -> list[Any]:
        if not self._at_tape:
            self._check_place("apply", optimizer.name, AppliedInside)
        grads = list(grads)
        variables = list(variables or [])
        self.optimizers.append((optimizer, variables))
        variables = variables or [None] * len(grads)
        named = [_path(v, f"{optimizer.name}'s variable {i}") for i, v in enumerate(variables)]
        self.applied |= set(named)
        if not self._at_tape:
            return self._added(grads, named)
        if tf.compat.v1.get_default_graph() is self._graph:  # what the step made of them
            self._note(grads, named)
        return grads

    def _added(self, grads: Sequence[Any], named: Sequence[str]) -> list[Any]:
        """Gradients of the whole batch, which are noted."""
        added = [self._sum(g, name) for g, name in zip(grads, named, strict=True)]
        self._note(added, named)
        return added

    def _note(self, grads: Sequence[Any], named: Sequence[str]) -> None:
        self.gradients += [(n, g) for n, g in zip(named, grads, strict=True) if g is not None]

    def _scaling(self, scale_loss: Callable[..., Any]) -> Callable[..., Any]:
        def noted(optimizer: Any, loss: Any) -> Any:
            scaled = scale_loss(optimizer, loss)
            if scaled is not loss:
                self._scaled.append(scaled)
            return scaled

        return unconverted(noted)

    def _outermost(self, update: Callable[..., Any]) -> Callable[..., Any]:
        def whole_first(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return update(*args, **kwargs)
            self._check_place("update_state", "a metric")
            given = as_with_keras(args, kwargs, self._rows)
            args, kwargs = tf.nest.map_structure(self._of_batch, given)
            return self._called(update, *args, **kwargs)

        return unconverted(whole_first)

    def _differentiating(self, gradient: Callable[..., Any]) -> Callable[..., Any]:
        def by_size(
            tape: Any, target: Any, sources: Any, output_gradients: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            given = tape, target, sources, output_gradients, *args
            if tf.compat.v1.get_default_graph() is not self._graph:  # there are no sums
                return gradient(*given, **kwargs)
            adds = self._adds_examples(target)
            if output_gradients is None and not adds and any(target is scaled for scaled in self._scaled):
                # Halves may not hold what a slice's loss gives: each example counts for more in that.
                counts = self._share * tf.ones_like(target)
                with _context().differentiating(1.0):
                    found = gradient(tape, target, sources, counts, *args, **kwargs)
                found = tf.nest.map_structure(lambda each: _times(each, 1 / self._share), found)
            else:
                # Gradients that are given are those of the batch too, unless the step sees to that.
                summed = adds and (output_gradients is None or self._weighs)
                with _context().differentiating(1.0 if summed else self._share):
                    found = gradient(*given, **kwargs)
            both = zip(tf.nest.flatten(found), tf.nest.flatten(sources), strict=True)
            flat = [_times(each, self._weight(source, adds=adds)) for each, source in both]
            found = tf.nest.pack_sequence_as(found, flat)
            return self._of_variables(found, sources) if self._at_tape else found

        return unconverted(by_size)

    def _weight(self, source: Any, *, adds: bool) -> float:
        """How much more or less a batch's gradient by this is than one of its slices shows, added by size.

        Where a tape adds examples up, gradients by variables are sums. Where it does not, an example counts
        for less in the mean over the batch than in that over its slice.
        """
        if isinstance(source, tf.Variable | keras.Variable):
            weight = 1 / self._share if adds else 1.0
        else:
            shape = tf.TensorShape(getattr(source, "shape", None))
            of_examples = bool(shape.rank) and self._grows(shape[0])  # has its place in `sizes`
            weight = self._share if of_examples and not adds else 1.0
        self.weighs |= weight != 1.0
        return weight if self._weighs else 1.0

    def _of_variables(self, gradients: Any, sources: Any) -> Any:
        """What a tape gives, with gradients of variables added; those of other values are of the slice."""
        flat, of = tf.nest.flatten(gradients), tf.nest.flatten(sources)
        places = [i for i, source in enumerate(of) if isinstance(source, tf.Variable | keras.Variable)]
        named = [_path(of[i], f"variable {i}") for i in places]
        for i, added in zip(places, self._added([flat[i] for i in places], named), strict=True):
            flat[i] = added
        return tf.nest.pack_sequence_as(gradients, flat)

    def _adds_examples(self, target: Any) -> bool:
        """Whether a tape gives the gradient of a sum over the examples of this, and not of their mean.

        It adds up what it is given: a loss for each example, or their scores for a gradient penalty.
        """
        added = [_in_sum(v) for v in tf.nest.flatten(target) if isinstance(v, tf.Tensor)]
        grow = [bool(v.shape.rank) and self._grows(v.shape[0]) for v in added]  # has its place in `sizes`
        return bool(grow) and all(grow)

    def _check_place(self, method: str, value: str, error: type[InvalidArgument] = InvalidArgument) -> None:
        if tf.compat.v1.get_default_graph() is not self._graph:
            rule = "is called inside a loop, a branch or a tf.function, where a trace cannot be cut"
            fix = "Call it in the step itself: instead of a branch, multiply gradients by 0 or 1"
            raise error("fit()", [Problem(method, value, rule, fix)])

    def _called(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._inside = True
        try:
            with _context().summed():
                return fn(*args, **kwargs)
        finally:
            self._inside = False

    def _sum(self, gradient: Any, name: str) -> Any:
        """The gradient of the whole batch."""
        if gradient is None:
            return None
        if not isinstance(gradient, tf.IndexedSlices):
            return self._mean(tf.convert_to_tensor(gradient))
        lookups = self._lookups(gradient.indices)
        if any(kind == MIXED for _, kind, _ in lookups):
            rule = "is looked up in several ways inside a tf.function or a branch, some of them at fixed rows"
            fix = "Look it up in the step itself, or read it as a whole: "
            fix += "tf.gather(tf.convert_to_tensor(table), ids)"
            raise InvalidArgument("fit()", [Problem("variable", name, rule, fix)])
        if any(kind == FOLDED for _, kind, _ in lookups):
            rule = "is looked up at rows made of distinct ids (tf.unique) that may be equal again, of which "
            rule += "slices have others than the whole batch"
            fix = "Make the rows of the ids first, and take tf.unique of them last"
            raise InvalidArgument("fit()", [Problem("variable", name, rule, fix)])
        scaled = gradient.values * tf.constant(self._share, gradient.dtype)
        counts = [tf.size(indices) for indices, *_ in lookups]
        parts = zip(tf.split(scaled, counts), tf.split(gradient.indices, counts), lookups, strict=True)
        both = [self._rows_of_batch(values, indices, lookup) for values, indices, lookup in parts]
        values, indices = (tf.concat(list(each), axis=0) for each in zip(*both, strict=True))
        return tf.IndexedSlices(values, indices, gradient.dense_shape)

    def _rows_of_batch(self, values: Any, indices: Any, lookup: Lookup) -> tuple[Any, Any]:
        """The rows of one lookup that the gradient of the whole batch has, and where they belong."""
        looked_up, kind, shape = lookup
        grows = self._grows(shape[0] if shape else None, otherwise=kind != SAME)
        if kind == SAME and not grows:  # the same for every slice: a table that is read at fixed rows
            return self._all_reduce(values), indices
        if kind == ONCE:
            values, indices = self._of_all(values), self._of_all(indices)
            distinct, places = tf.unique(indices)
            return tf.math.unsorted_segment_sum(values, places, tf.size(distinct)), distinct
        size = looked_up.shape.num_elements() if shape and shape[0] == self._rows else None
        each = None if size is None or size % self._rows else size // self._rows
        return self._rows_of_all(values, each), self._rows_of_all(indices, each)

    def _grows(self, size: int | None, otherwise: bool = True) -> bool:
        """Whether a dim is one for each example, or some; `otherwise` where nothing tells."""
        known, multiple = self._known.get(len(self.sizes)), size is not None and size % self._rows == 0
        self.sizes.append(Size(size, multiple, size == self._rows))
        if known is not None:
            return known
        return otherwise if size is None else multiple

    def _is_rows(self, number: int | float) -> bool:
        """Whether a number is that of the examples."""
        known = self._known.get(len(self.sizes), True)
        self.sizes.append(Size(number, number == self._rows, False))
        return number == self._rows and known

    def _rows_of_all(self, rows: Any, each: int | None) -> Any:
        """Rows of which every example has some, those of all examples; or those of all slices in order."""
        if each is None:
            return self._of_all(rows)
        shape = tf.shape(rows)[1:]
        by_example = tf.reshape(rows, tf.concat([[self._rows, each], shape], 0))
        whole = gathered(by_example, self._positions, self._total)
        return tf.reshape(whole, tf.concat([[self._total * each], shape], 0))

    def _of_all(self, rows: Any) -> Any:
        """The rows of all replicas, one replica after the other; each has as many as it has."""
        slot, num_slots = self._slot
        counts = self._all_reduce(tf.scatter_nd([[slot]], tf.shape(rows)[:1], [num_slots]))
        begin = tf.cumsum(counts, exclusive=True)[slot]
        shape = tf.concat([[tf.reduce_sum(counts)], tf.shape(rows)[1:]], 0)
        where = begin + tf.range(tf.shape(rows)[0])
        return self._all_reduce(tf.scatter_nd(where[:, None], rows, shape))

    @property
    def _slot(self) -> tuple[Any, int]:
        """A place that no other replica has, and how many places there are."""
        return self._positions[0], self._total

    def _all_reduce(self, value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)

    @property
    def _share(self) -> float:
        return self._rows / self._total

    def _mean(self, value: Any) -> Any:
        return self._all_reduce(value * tf.constant(self._share, value.dtype))

    def _of_batch(self, value: Any) -> Any:
        """What the whole batch gives where a slice gives this."""
        if value is ROWS:  # or a number that happens to be that of the rows
            return self._total if self._is_rows(self._rows) else self._rows
        if type(value) is int:
            self._is_rows(value)  # has its place in `sizes`
            return value
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor) and value.dtype != tf.string:
            return self._rows_of_composite(value)
        if not isinstance(value, tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
            return value
        if value.shape.rank == 0:
            number = known_number(value)
            if number is not None:
                return tf.constant(self._total, value.dtype) if self._is_rows(number) else value
            if value.dtype.is_floating:
                summed = self.summed(value)
                return self._mean(value) if summed is value else summed
            if value.dtype.is_integer:  # how many there are of something, or the same number for all
                return value if is_of_variables(value) else self._all_reduce(value)
        elif value.shape.rank is not None and value.dtype != tf.string:
            size = value.shape[0]
            if self._grows(size):
                return self._masked(self._values_of_all(value, size), value)
            if value.dtype.is_floating:
                return self._mean(value)
        rule = f"is given {value.dtype.name} of shape {value.shape}, of which the whole batch has no sum"
        fix = "Give it one value for each example, or the mean over them"
        raise InvalidArgument("fit()", [Problem("update_state", "a metric", rule, fix)])

    def summed(self, value: Any) -> Any:
        """The sum over all examples in the place of that over a slice's; all else as it is."""
        is_number = isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating
        if not is_number or is_of_variables(value) or not self._adds_examples(value):
            return value
        return self._all_reduce(value)

    def whole(self, value: Any) -> Any:
        """What the whole batch has in the place of a value for each example; all else as it is."""
        if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
            return self._rows_of_composite(value)
        if not isinstance(value, tf.Tensor) or not value.shape.rank or not self._grows(value.shape[0]):
            return value
        if value.shape[0] != self._rows:
            return self._values_of_all(value, value.shape[0])
        return self._masked(gathered(value, self._positions, self._total), value)

    def _masked(self, whole: Any, value: Any) -> Any:
        """With the mask that Keras has left on a slice's value."""
        mask = getattr(value, "_keras_mask", None)
        if mask is not None:
            whole._keras_mask = gathered(mask, self._positions, self._total)
        return whole

    def _rows_of_composite(self, value: Any) -> Any:
        """Of a ragged or a sparse tensor, the rows of all slices one after the other."""
        if isinstance(value, tf.RaggedTensor):
            lengths = [self._of_all(each) for each in value.nested_row_lengths()]
            return tf.RaggedTensor.from_nested_row_lengths(self._of_all(value.flat_values), lengths)
        first = tf.cast(self._positions[0], tf.int64)
        rows, others = tf.split(value.indices, [1, -1], axis=1)
        places = self._of_all(tf.concat([rows + first, others], axis=1))
        # All have the same other dims; to be seen to be those of the batch, they are a sum as well.
        dims = self._all_reduce(value.dense_shape[1:] * tf.cast(first == 0, tf.int64))
        shape = tf.concat([[tf.constant(self._total, tf.int64)], dims], axis=0)
        return tf.SparseTensor(places, self._of_all(value.values), shape)

    def _values_of_all(self, value: Any, size: int | None) -> Any:
        """One value for each example, or some, such as one for each token."""
        if size == self._rows:
            return gathered(value, self._positions, self._total)
        numbers = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
        whole = self._rows_of_all(numbers, None if size is None else size // self._rows)
        whole.set_shape([None, *value.shape[1:]])
        return tf.cast(whole, value.dtype)


def _context() -> TracingContext:
    context = tf.distribute.get_replica_context()
    assert isinstance(context, TracingContext)
    return context


def _times(gradient: Any, factor: float) -> Any:
    return gradient if gradient is None or factor == 1.0 else tf.math.scalar_mul(factor, gradient)


def _in_sum(tensor: Any) -> Any:
    """What a tensor is the sum of, if it is one."""
    inner = tensor
    while inner.op.type in ("Identity", "Cast", "Neg"):
        inner = inner.op.inputs[0]
    return inner.op.inputs[0] if inner.op.type == "Sum" else tensor


def _path(variable: Any, otherwise: str) -> str:
    return otherwise if variable is None else str(getattr(variable, "path", variable.name))
