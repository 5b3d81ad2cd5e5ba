"""What `model.fit` is given to train on, as one dataset whose place can be saved.

Keras shuffles arrays by an op whose state TensorFlow does not give out. Here `tf.data` shuffles them, whose
seeds are saved; the order is another one than Keras's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.trace.concrete import unconverted

ARRAYS = (np.ndarray, tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
# The size of a batch that Keras takes if nobody says one.
BATCH_SIZE = 32


@dataclass(frozen=True)
class FitDataset:
    """A dataset, and what is left for Keras to do.

    Args:
        batches: elements are tuples of one: what Keras takes for a batch.
        options: what `model.fit` is called with besides, such as `validation_data`.
        steps_per_epoch: as given.
    """

    batches: tf.data.Dataset
    options: dict[str, Any]
    steps_per_epoch: int | None

    @classmethod
    def of(cls, x: Any, y: Any, arguments: dict[str, Any]) -> "FitDataset":
        """Of what `model.fit` is called with."""
        options = dict(arguments)
        size, steps = options.pop("batch_size", None), options.pop("steps_per_epoch", None)
        shuffle, weight = options.pop("shuffle", True), options.pop("sample_weight", None)
        classes, split = options.pop("class_weight", None), options.pop("validation_split", 0.0)
        check("fit()", _problems(x, y, weight, shuffle, split))
        options.setdefault("validation_batch_size", size)
        if isinstance(x, tf.data.Dataset):
            batches = x.map(unconverted(_as_one))
        else:
            if split and options.get("validation_data") is None:
                (x, y, weight), options["validation_data"] = _cut((x, y, weight), split)
            rows = _rows((x, y, weight))
            size = size or (math.ceil(rows / steps) if steps else BATCH_SIZE)
            batches = _in_batches((x, y, weight), rows, size, shuffle=bool(shuffle))
        if classes is not None:
            batches = batches.map(unconverted(_weighing(classes)))
        made = cls(batches, options, steps)
        check("fit()", made._undivided())
        return made

    @property
    def counted(self) -> tf.data.Dataset:
        """A dataset by which Keras counts the batches of an epoch, without having them."""
        if self.steps_per_epoch is not None:
            return tf.data.Dataset.range(1).repeat()
        count = int(self.batches.cardinality())
        if count >= 0:
            return tf.data.Dataset.range(count)
        return tf.data.Dataset.range(1).repeat().filter(lambda _: True)  # nobody knows how many

    @property
    def num_steps(self) -> int | None:
        """Of an epoch, if that is known."""
        count = int(self.batches.cardinality())
        return self.steps_per_epoch or (count if count >= 0 else None)

    def _undivided(self) -> Iterator[Problem]:
        count = int(self.batches.cardinality())
        if self.steps_per_epoch is not None and count >= 0 and count % self.steps_per_epoch:
            rule = f"does not divide the {count} batches of the data, so that epochs would differ in length"
            fix = "Repeat the dataset, or choose another number"
            yield Problem("steps_per_epoch", self.steps_per_epoch, rule, fix)


def _problems(x: Any, y: Any, weight: Any, shuffle: Any, split: Any) -> Iterator[Problem]:
    if isinstance(x, tf.data.Dataset):
        if y is not None or weight is not None:
            rule = "is in the dataset already, or nowhere"
            yield Problem("y", type(y).__name__, rule, "Pass a dataset of (x, y) or (x, y, sample_weight)")
        if split:
            rule, fix = "is for arrays; a dataset is not cut", "Pass validation_data"
            yield Problem("validation_split", split, rule, fix)
        return
    kinds = [type(leaf).__name__ for leaf in _leaves((x, y, weight)) if not _is_array(leaf)]
    if kinds or x is None:
        rule = "must be arrays or a tf.data.Dataset where a checkpoint is kept: the place in others "
        rule += "cannot be saved"
        fix = "Pass a tf.data.Dataset; or leave out checkpoint and use keras.callbacks.BackupAndRestore"
        yield Problem("x", ", ".join(dict.fromkeys(kinds)) or None, rule, fix)
    if shuffle == "batch":
        rule, fix = "is not kept by a checkpoint", "Leave it out, or pass shuffle=False"
        yield Problem("shuffle", shuffle, rule, fix)


def _leaves(nest: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(nest) if leaf is not None]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, ARRAYS) or hasattr(leaf, "to_numpy")


def _rows(nest: Any) -> int:
    return int(_leaves(nest)[0].shape[0])


def _cut(arrays: Any, split: float) -> tuple[Any, Any]:
    """The first examples to train, the last ones to validate, as Keras cuts them."""
    at = math.floor(_rows(arrays) * (1.0 - split))

    def part(start: int, end: int | None) -> Any:
        def of(leaf: Any) -> Any:
            if isinstance(leaf, tf.SparseTensor):
                first = [start, *[0] * (leaf.shape.rank - 1)]
                size = [(_rows(leaf) if end is None else end) - start, *leaf.shape[1:]]
                return tf.sparse.slice(leaf, first, size)
            rows = leaf.iloc if hasattr(leaf, "iloc") else leaf
            return None if leaf is None else rows[start:end]

        return tf.nest.map_structure(of, arrays)

    return part(0, at), part(at, None)


def _in_batches(arrays: Any, rows: int, size: int, *, shuffle: bool) -> tf.data.Dataset:
    with tf.device("/device:CPU:0"):  # or they would go to the first card, and back
        whole = tf.nest.map_structure(_converted, arrays)
        order = tf.data.Dataset.range(rows)
        order = order.shuffle(rows) if shuffle else order
        x, y, weight = _without_lists(whole)
        element = keras.utils.pack_x_y_sample_weight(x, y, weight)
        leaves = tf.nest.flatten(element)
        gather = unconverted(
            lambda where: (tf.nest.pack_sequence_as(element, [_at(leaf, where) for leaf in leaves]),)
        )
        return order.batch(size).map(gather)


def _at(leaf: Any, where: Any) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return tf.gather(leaf, where)
    # A sparse tensor has no rows to gather; as ragged ones its values have, and the rest of their places.
    values, rest = (
        tf.gather(tf.RaggedTensor.from_value_rowids(part, leaf.indices[:, 0], leaf.dense_shape[0]), where)
        for part in (leaf.values, leaf.indices[:, 1:])
    )
    places = tf.concat([values.value_rowids()[:, None], rest.values], axis=1)
    return tf.SparseTensor(places, values.values, [tf.size(where, tf.int64), *leaf.shape[1:]])


def _converted(leaf: Any) -> Any:
    """As Keras converts arrays: floats in its own dtype."""
    if leaf is None or isinstance(leaf, tf.RaggedTensor):
        return leaf
    if isinstance(leaf, tf.SparseTensor):
        return tf.sparse.reorder(leaf)  # so that its rows can be told
    if hasattr(leaf, "to_numpy"):  # of Pandas; a series is a column
        numbers = leaf.to_numpy()
        leaf = numbers[:, None] if numbers.ndim == 1 else numbers
    tensor = tf.convert_to_tensor(leaf)
    return tf.cast(tensor, keras.config.floatx()) if tensor.dtype.is_floating else tensor


def _without_lists(nest: Any) -> Any:
    """Datasets take lists for tensors."""
    if isinstance(nest, list | tuple):
        return tuple(_without_lists(one) for one in nest)
    if isinstance(nest, dict):
        return {key: _without_lists(one) for key, one in nest.items()}
    return nest


def _as_one(*element: Any) -> tuple[Any]:
    """The element of a dataset in a tuple of one."""
    return (element if len(element) > 1 else element[0],)


def _weighing(classes: dict[int, float]) -> Any:
    """Class weights as the weights of examples; a class without one has 1."""
    weights = [float(classes.get(c, 1.0)) for c in range(max(classes) + 1)]

    def weighed(data: Any) -> Any:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        check("fit()", _unweighed(y, weight))
        several = y.shape.rank > 1
        y_class = tf.argmax(y, -1) if several and y.shape[-1] != 1 else tf.squeeze(y, -1) if several else y
        known = tf.cast(y_class if y_class.dtype.is_integer else tf.round(y_class), tf.int64)
        table = tf.constant([*weights, 1.0], keras.config.floatx())
        return ((x, y, tf.gather(table, tf.minimum(known, len(weights)))),)

    return weighed


def _unweighed(y: Any, weight: Any) -> Iterator[Problem]:
    if weight is not None:
        rule, fix = "has no meaning beside sample_weight", "Multiply the weights yourself"
        yield Problem("class_weight", "given", rule, fix)
    if not isinstance(y, tf.Tensor):
        rule, fix = "is for models with one output", "Pass sample_weight"
        yield Problem("class_weight", "given", rule, fix)
