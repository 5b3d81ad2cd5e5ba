"""Cuts a batch into slices, one for each device: which arguments are split, and which each gets whole.

Every tensor among the arguments is split on its first dim, in consecutive slices whose sizes differ
by at most one; Python values, 0-d tensors and what is wrapped in `broadcast` pass whole.
"""

import inspect
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import Problem, check

COMPOSITE = (tf.RaggedTensor, tf.SparseTensor)
SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)
TENSORS = ("split", "whole")  # roles of the leaves that are tensors
ARRAYS = (tf.Tensor, tf.Variable, np.ndarray, np.generic)


class Broadcast:
    """A value that every device gets whole; made by `broadcast`."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Whole:
    """An object that is no nest of tensors, whatever it looks like: the `self` of a method."""

    def __init__(self, value: Any) -> None:
        self.value = value


def broadcast(value: Any) -> Broadcast:
    """Pass `value`, a tensor or a nest of them, whole to every device instead of splitting it.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> def add(x, table):
        ...     return x + tf.reduce_sum(table)
        >>> cn.make_parallel(add, 2, x=tf.zeros(3), table=cn.broadcast(tf.ones(5))).numpy().tolist()
        [5.0, 5.0, 5.0]
    """
    return Broadcast(value)


def sizes(total: int, parts: int) -> tuple[int, ...]:
    """Sizes of consecutive slices that differ by at most one; fewer slices rather than an empty one.

    >>> sizes(99, 4), sizes(3, 4)
    ((25, 25, 25, 24), (1, 1, 1))
    """
    small, larger = divmod(total, parts)
    return tuple(small + (i < larger) for i in range(parts) if small or i < larger)


def is_tensor(value: Any) -> bool:
    """Whether TensorFlow computed this value."""
    return isinstance(value, (tf.Tensor, tf.Variable, tf.IndexedSlices, *COMPOSITE))


def flatten(nest: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nest of dicts, lists, tuples and dataclasses, each with its path."""
    for key, child in _children(nest):
        yield from flatten(child, f"{path}{key}")
    if not _is_nest(nest):
        yield path, nest


def pack(nest: Any, leaves: Iterator[Any]) -> Any:
    """The same nest with other leaves, taken from `leaves` in the order of `flatten`."""
    if not _is_nest(nest):
        return next(leaves)
    children = [pack(child, leaves) for _, child in _children(nest)]
    if isinstance(nest, dict):
        other = copy(nest)  # keeps what a subclass adds, such as a default factory
        other.update(zip(nest, children, strict=True))
        return other
    if is_dataclass(nest) and not isinstance(nest, type):
        same: Any = copy(nest)
        for field, child in zip(fields(nest), children, strict=True):
            object.__setattr__(same, field.name, child)  # also of a frozen one, also where init=False
        return same
    return type(nest)(*children) if hasattr(nest, "_fields") else type(nest)(children)


def with_tensors(nest: Any, tensors: Sequence[Any]) -> Any:
    """The same nest with other tensors; what is none stays, such as a Python number."""
    others = iter(tensors)
    return pack(nest, iter([next(others) if is_tensor(leaf) else leaf for _, leaf in flatten(nest)]))


def _is_nest(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) or (is_dataclass(value) and not isinstance(value, type))


def _children(nest: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(nest, dict):
        yield from ((f"[{key!r}]", child) for key, child in nest.items())
    elif isinstance(nest, list | tuple):
        yield from ((f"[{i}]", child) for i, child in enumerate(nest))
    elif is_dataclass(nest) and not isinstance(nest, type):
        yield from ((f".{f.name}", getattr(nest, f.name)) for f in fields(nest))


@dataclass(frozen=True)
class Leaf:
    """One value among the arguments.

    A tensor is split over the devices or passed whole; a Python value is fixed, and part of the trace;
    an object (the `self` of a method) is known by its identity.
    """

    path: str
    value: Any
    role: str  # split, whole, fixed or object
    open: tuple[int, ...] = ()  # dims of which a trace does not know the size, because it varies

    @property
    def shape(self) -> tuple[int | None, ...]:
        """As a trace sees it."""
        return tuple(None if i in self.open else size for i, size in enumerate(self.value.shape))

    def size(self) -> int | None:
        """The first dim, where it is known."""
        if isinstance(self.value, COMPOSITE) and tf.executing_eagerly():
            rows = (
                self.value.nrows() if isinstance(self.value, tf.RaggedTensor) else self.value.dense_shape[0]
            )
            return int(rows)
        return self.value.shape[0]

    def key(self) -> Hashable:
        """Equal for values that one trace serves."""
        if self.role == "object":
            return self.path, id(self.value)
        if self.role == "fixed":
            return self.path, type(self.value), _comparable(self.value)
        kind = type(self.value).__name__ if isinstance(self.value, COMPOSITE) else ""
        return self.path, self.role, kind, self.value.dtype, self.shape, self.ragged()

    def ragged(self) -> Hashable:
        if not isinstance(self.value, tf.RaggedTensor | tf.RaggedTensorSpec):
            return None
        splits = self.value.row_splits if isinstance(self.value, tf.RaggedTensor) else None
        dtype = self.value.row_splits_dtype if splits is None else splits.dtype
        return self.value.ragged_rank, dtype


class Arguments:
    """The arguments of one call: their structure, and their leaves with the role of each."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str] = ()) -> None:
        positional = dict(zip(_names(args, names, kwargs), args, strict=True))
        self.count = len(args)
        self.structure = {**positional, **kwargs}
        self.leaves = [leaf for name, value in self.structure.items() for leaf in _leaves(name, value)]

    @property
    def split(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.role == "split"]

    @property
    def tensors(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.role in TENSORS]

    def key(self) -> Hashable:
        """Equal for calls that one trace serves: the same structure, dtypes, shapes and Python values."""
        return (self.count, _skeleton(self.structure), *(leaf.key() for leaf in self.leaves))

    def size(self, where: str) -> int | None:
        """The first dim that all split arguments share; None where TensorFlow does not know it yet."""
        check(where, self._disagreements())
        known = {leaf.size() for leaf in self.split} - {None}
        return known.pop() if known else None

    def _disagreements(self) -> Iterator[Problem]:
        if not self.split:
            given = ", ".join(self.structure) or "nothing"
            yield Problem(
                "arguments", given, "none is a tensor to split", "Pass at least one with a first dim"
            )
        for leaf in self.leaves:
            if leaf.role == "fixed" and not _is_hashable(leaf.value):
                kind = type(leaf.value).__name__
                rule = "is a Python value that cannot be hashed, so a change of it would go unseen"
                yield Problem(
                    leaf.path, kind, rule, "Pass a tuple or a frozenset, or let the function hold it"
                )
        known = [(leaf, leaf.size()) for leaf in self.split]
        if len({size for _, size in known if size is not None}) > 1:
            for leaf, size in known:
                rule = f"has {size} rows; all arguments that are split must have the same number"
                yield Problem(
                    leaf.path,
                    tuple(leaf.value.shape),
                    rule,
                    f"Wrap it to pass it whole: cn.broadcast({leaf.path})",
                )
        for leaf, size in known:
            if size == 0:
                yield Problem(leaf.path, tuple(leaf.value.shape), "has no rows", "Pass at least one example")

    def counts(self, num_parts: int, *, empty: bool = False) -> list[Any]:
        """Sizes of the slices where the first dim is known only when the graph runs.

        With `empty`, those at the end may be 0.
        """
        first, *others = self.split
        total = _rows(first.value)
        needed = "needs a static batch dim: set the shape of"
        fix = f"a batch smaller than {num_parts} devices {needed} {first.path}"
        rule = "has another number of rows than"
        checks = [tf.debugging.assert_greater_equal(total, 1 if empty else num_parts, fix)] + [
            tf.debugging.assert_equal(_rows(leaf.value), total, f"{leaf.path} {rule} {first.path}")
            for leaf in others
        ]
        with tf.control_dependencies(checks):
            small, larger = total // num_parts, total % num_parts
        return [small + tf.cast(i < larger, tf.int32) for i in range(num_parts)]

    def resized(self, rows: int) -> "Arguments":
        """Specs like these arguments, with another first dim: enough to trace with."""
        return self.with_values([_resized(leaf, rows) for leaf in self.leaves])

    def opened(self, dims: Sequence[tuple[int, ...]]) -> "Arguments":
        """The same with some dims of each leaf open (see `widths`)."""
        other = self.with_values([leaf.value for leaf in self.leaves])
        other.leaves = [replace(leaf, open=each) for leaf, each in zip(other.leaves, dims, strict=True)]
        return other

    def specs(self) -> list[tf.TensorSpec]:
        """What a trace knows of the plain tensors: their dtypes and shapes, but for dims that are open."""
        specs = []
        for leaf in self.tensors:
            parts = tf.nest.flatten(leaf.value, expand_composites=True)
            shapes = [leaf.shape] if leaf.open else [part.shape for part in parts]
            specs += [tf.TensorSpec(s, p.dtype) for s, p in zip(shapes, parts, strict=True)]
        return specs

    def prefixed(self, value: Any) -> "Arguments":
        """These arguments behind one more, which is a 0-d tensor and passes whole."""
        other = self.with_values([leaf.value for leaf in self.leaves])
        other.count = self.count + 1
        other.structure = {"": value, **self.structure}
        other.leaves = [Leaf("", value, "whole"), *other.leaves]
        return other

    def rows(self, rows: Any) -> "Arguments":
        """These arguments with other rows: the ones at the given positions, in that order."""
        return self.with_values(
            [_gather(leaf.value, rows) if leaf.role == "split" else leaf.value for leaf in self.leaves]
        )

    def parts(self, counts: Sequence[Any]) -> list["Arguments"]:
        """These arguments once per slice, with the split leaves cut into slices of `counts` rows."""
        cut = [
            _cut(leaf.value, counts) if leaf.role == "split" else [leaf.value] * len(counts)
            for leaf in self.leaves
        ]
        return [self.with_values(values) for values in zip(*cut, strict=True)]

    def with_values(self, values: Sequence[Any]) -> "Arguments":
        """The same structure and roles with other values."""
        other = object.__new__(Arguments)
        other.count, other.structure = self.count, self.structure
        other.leaves = [replace(leaf, value=value) for leaf, value in zip(self.leaves, values, strict=True)]
        return other

    def components(self) -> list[Any]:
        """The plain tensors that make up the leaves, in order; fixed values have none."""
        return tf.nest.flatten([leaf.value for leaf in self.tensors], expand_composites=True)

    def with_components(self, components: Sequence[Any]) -> "Arguments":
        """The same arguments made of other plain tensors."""
        tensors = [leaf.value for leaf in self.tensors]
        packed = iter(tf.nest.pack_sequence_as(tensors, list(components), expand_composites=True))
        return self.with_values(
            [next(packed) if leaf.role in TENSORS else leaf.value for leaf in self.leaves]
        )

    def unpack(self, components: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """What to call the function with, positional and by keyword, made of these plain tensors."""
        leaves = [leaf.value for leaf in self.with_components(components).leaves]
        packed = pack(_plain(self.structure), iter(leaves))
        return list(packed.values())[: self.count], dict(list(packed.items())[self.count :])


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters, for messages."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some callables of extension modules have no signature
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _names(args: tuple[Any, ...], names: Sequence[str], taken: Container[str]) -> list[str]:
    """A name for each positional argument; one that is passed by keyword too is for Python to refuse."""
    known = [name if name not in taken else None for name in names[: len(args)]]
    return [(known[i] if i < len(known) else None) or f"argument {i}" for i in range(len(args))]


def _leaves(name: str, value: Any, whole: bool = False) -> Iterator[Leaf]:
    for path, leaf in flatten(value, name):
        if isinstance(leaf, Broadcast):
            yield from _leaves(path, leaf.value, whole=True)
        elif isinstance(leaf, Whole):
            yield Leaf(path, leaf.value, "object")
        elif not isinstance(leaf, (*ARRAYS, *COMPOSITE, *SPECS)):
            yield Leaf(path, leaf, "fixed")
        else:
            tensor = tf.convert_to_tensor(leaf) if isinstance(leaf, ARRAYS) else leaf
            yield Leaf(path, tensor, "whole" if whole or tensor.shape.rank == 0 else "split")


def _plain(structure: Any) -> Any:
    """A structure without the marks of `broadcast`."""
    leaves = [_plain(leaf.value) if isinstance(leaf, Broadcast) else leaf for _, leaf in flatten(structure)]
    return pack(structure, iter(leaves))


def _skeleton(nest: Any) -> Hashable:
    """The shape of a nest, without its leaves, as something that compares."""
    if isinstance(nest, Broadcast):
        return Broadcast, _skeleton(nest.value)
    return type(nest) if _is_nest(nest) else None, tuple(
        (k, _skeleton(child)) for k, child in _children(nest)
    )


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _comparable(value: Any) -> Hashable:
    """What stands for a Python value in a key."""
    if isinstance(value, float):  # 0.0 equals -0.0, and NaN not even itself
        return value.hex()
    return value if _is_hashable(value) else "cannot be hashed: refused before anything is traced"


def _rows(value: Any) -> Any:
    """The first dim, as a tensor."""
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    shape = value.dense_shape if isinstance(value, tf.SparseTensor) else tf.shape(value)
    return tf.cast(shape[0], tf.int32)


def _gather(value: Any, rows: Any) -> Any:
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.concat(0, [_cut(value, [int(row), 1, 0])[1] for row in rows])
    return tf.gather(value, rows)


def _resized(leaf: Leaf, rows: int) -> Any:
    if leaf.role == "whole" and leaf.open:  # of a value that every device gets, dims may vary too
        return tf.TensorSpec(leaf.shape, leaf.value.dtype)
    if leaf.role != "split":
        return leaf.value
    shape = [rows, *leaf.shape[1:]]
    if isinstance(leaf.value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(
            shape, leaf.value.dtype, leaf.value.ragged_rank, leaf.value.row_splits.dtype
        )
    spec = tf.SparseTensorSpec if isinstance(leaf.value, tf.SparseTensor) else tf.TensorSpec
    return spec(shape, leaf.value.dtype)


def _cut(value: Any, counts: Sequence[Any]) -> list[Any]:
    starts = [sum(counts[:i]) for i in range(len(counts))]
    if isinstance(value, tf.RaggedTensor):
        return [value[start : start + count] for start, count in zip(starts, counts, strict=True)]
    if isinstance(value, tf.SparseTensor):
        rest = value.dense_shape[1:]
        return [
            _of_rows(
                count,
                tf.sparse.slice(
                    value, tf.concat([[start], tf.zeros_like(rest)], 0), tf.concat([[count], rest], 0)
                ),
                value.shape[1:],
            )
            for start, count in zip(starts, counts, strict=True)
        ]
    return tf.split(value, list(counts), num=len(counts)) if len(counts) > 1 else [value]


def _of_rows(count: Any, part: tf.SparseTensor, rest: tf.TensorShape) -> tf.SparseTensor:
    """A slice of a sparse tensor with the shape that it is known to have, which TensorFlow does not tell."""
    if not isinstance(count, int):
        return part
    spec = tf.SparseTensorSpec([count, *rest], part.dtype)
    return tf.nest.pack_sequence_as(
        spec, tf.nest.flatten(part, expand_composites=True), expand_composites=True
    )
