"""Makes a `tf.data.Dataset` of global batches of whatever the user passes: arrays, datasets, generators."""

import itertools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check, is_whole
from colonnade.run.batch.split import flatten, pack
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.move.slices_ahead import HOST
from colonnade.run.trace.concrete import unconverted


def feed(data: Any, batch_size: int | None, where: str) -> tf.data.Dataset:
    """A dataset whose elements are tuples of arguments for the loss function.

    Args:
        data: a `tf.data.Dataset` of global batches; arrays, or a tuple or dict of them, with
            `batch_size`; or a generator of global batches.
        batch_size: the global batch size, for arrays only.
        where: who asks, for messages.
    """
    if isinstance(data, tf.data.Dataset):
        if batch_size is not None:
            rule = "is for arrays; a dataset has its own batches"
            raise InvalidArgument(where, [Problem("batch_size", batch_size, rule, "Use dataset.batch(...)")])
        spec = data.element_spec
        check(where, _rankless(spec))
        # A map is a trace more; compared as text, in which the order of keys is seen.
        ready = isinstance(spec, tuple) and str(as_arguments(spec)) == str(spec)
        return data if ready else _mapped(data)
    if is_generator(data):
        if batch_size is not None:
            rule = "is for arrays; a list or a generator has its own batches"
            fix = "Leave it out; or, if these are arrays, pass a tuple: (x, y)"
            raise InvalidArgument(where, [Problem("batch_size", batch_size, rule, fix)])
        return _mapped(_from_batches(data, where))
    arrays = as_arguments(data)
    _check_arrays(arrays, batch_size, where)
    with tf.device(HOST):  # or they would go to the first card, and back
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


def on_host(data: Any) -> Any:
    """A batch with its arrays as tensors of the host; else they would go to the first card, and back."""
    with tf.device(HOST):
        leaves = [tf.convert_to_tensor(v) if isinstance(v, np.ndarray) else v for _, v in flatten(data)]
    return pack(data, iter(leaves))


def unpacked(data: Any) -> tuple[Any, Any, Any]:
    """What Keras takes for a batch as x, y and the weights of examples, with its arrays on the host."""
    x, y, weight = keras.utils.unpack_x_y_sample_weight(on_host(without_optionals(data)))
    return x, y, weight


def _rankless(spec: Any) -> Iterator[Problem]:
    for leaf in tf.nest.flatten(spec):
        if leaf.shape.rank is None:
            rule, fix = "has batches of unknown rank", "Map tf.ensure_shape(x, [None, ...]) over it"
            yield Problem("data", str(leaf), rule, fix)


def is_generator(data: Any) -> bool:
    """Whether the batches come from Python, one after the other."""
    return not isinstance(data, tf.data.Dataset) and (
        isinstance(data, Iterator) or _is_sequence_of_batches(data)
    )


def as_arguments(element: Any) -> tuple[Any, ...]:
    """A dataset's element as the arguments of a function: a tuple is several, anything else is one."""
    arguments: tuple[Any, ...] = _in_order(element if isinstance(element, tuple) else (element,))
    return arguments


def _mapped(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """With each element as arguments; `map` hands over the members of a plain tuple one by one."""
    members = type(dataset.element_spec) is tuple
    return dataset.map(unconverted(lambda *given: as_arguments(given if members else given[0])))


def _in_order(nest: Any) -> Any:
    """With the keys of dicts sorted.

    TensorFlow flattens dicts by their sorted keys and the engines as they are: now it is the same.
    """
    if isinstance(nest, dict):
        return {key: _in_order(nest[key]) for key in sorted(nest)}
    if isinstance(nest, tuple):
        children = [_in_order(child) for child in nest]
        return type(nest)(*children) if hasattr(nest, "_fields") else tuple(children)
    return nest


def _is_sequence_of_batches(data: Any) -> bool:
    return hasattr(data, "__iter__") and not isinstance(data, np.ndarray | tf.Tensor | dict | tuple | str)


def _check_arrays(arrays: tuple[Any, ...], batch_size: Any, where: str) -> None:
    problems = []
    if not is_whole(batch_size, 1):
        rule = "must be the number of examples in a global batch"
        problems.append(Problem("batch_size", batch_size, rule, "Try batch_size=128"))
    leaves = tf.nest.flatten(arrays)
    kinds = [type(leaf).__name__ for leaf in leaves if not hasattr(leaf, "shape")]
    if kinds or not leaves:
        rule = "must be a tf.data.Dataset, arrays, or a generator of batches"
        problems.append(Problem("data", ", ".join(kinds) or "nothing", rule, "Pass NumPy arrays"))
    else:
        lengths = [leaf.shape[0] if len(leaf.shape) else None for leaf in leaves]
        if len(set(lengths)) > 1 or None in lengths or 0 in lengths:
            rule = "arrays must have the same number of rows, and at least one"
            problems.append(Problem("data", lengths, rule, "Pass as many labels as examples"))
    if problems:
        raise InvalidArgument(where, problems)


def _from_batches(data: Any, where: str) -> tf.data.Dataset:
    """A list is gone through again for every pass, an iterator once."""
    batches = iter(data)
    try:
        first = next(batches)
    except StopIteration:
        raise InvalidArgument(
            where, [Problem("data", "a generator", "gave no batch", "Make a new generator for each fit")]
        ) from None
    spec = tf.nest.map_structure(_spec_of, first)
    once = isinstance(data, Iterator)

    def same_kind() -> Iterator[Any]:
        for batch in itertools.chain([first], batches) if once else iter(data):
            check(where, _other_dtypes(batch, spec))
            yield batch

    return tf.data.Dataset.from_generator(same_kind, output_signature=spec)


def _other_dtypes(batch: Any, spec: Any) -> Iterator[Problem]:
    """What TensorFlow would turn into the dtype of the first batch, be it halves into whole numbers.

    Of a batch of another structure TensorFlow says so itself.
    """
    wanted = [(path, leaf.dtype) for path, leaf in flatten(spec)]
    given = [leaf for _, leaf in flatten(batch)]
    for (path, dtype), leaf in zip(wanted, given, strict=False):
        if dtype == tf.string:  # of NumPy's texts each length is a dtype
            continue
        own = tf.as_dtype(leaf.dtype if hasattr(leaf, "dtype") else _spec_of(leaf).dtype)
        if own != dtype:
            rule = f"is {own.name} in a later batch, and was {dtype.name} in the first one"
            fix = "Give all batches the same dtypes: array.astype(...)"
            yield Problem(f"data{path}", own.name, rule, fix)


def _spec_of(value: Any) -> Any:
    """For values like this one, whatever their dims: batches may be padded to different widths."""
    if isinstance(value, tf.RaggedTensor):
        shape = [None] * value.shape.rank
        return tf.RaggedTensorSpec(shape, value.dtype, value.ragged_rank, value.row_splits.dtype)
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec([None] * value.shape.rank, value.dtype)
    tensor = tf.convert_to_tensor(value)
    return tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype)
