"""Layers split by width: the weights of a layer in consecutive parts, one on each device.

    columns   x -> every device; each computes some columns of the result; gathered, or handed on
    rows      some columns of x -> each device; each computes a part of a sum; one reduction

A layer split by columns that hands its parts on to one split by rows needs that one reduction only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, whole
from colonnade.run.move.on_device import copies, on, total
from colonnade.run.parallel.parallel import Devices
from colonnade.run.variables.parts import Parts
from colonnade.run.width.split_layer import SplitLayer, elementwise, loading_on
from colonnade.run.width.vocabulary import softmax_cross_entropy, top_k
from colonnade.run.width.weight_rules import Rules

__all__ = [
    "Dense",
    "Embedding",
    "Parts",
    "SparseDense",
    "from_csr",
    "loading_on",
    "softmax_cross_entropy",
    "top_k",
]


@keras.saving.register_keras_serializable("colonnade.width")
class Dense(SplitLayer):
    """`keras.layers.Dense` with its kernel split over devices.

    Args:
        units: the number of columns of the result, over all devices.
        activation: a function of single elements.
        split: `columns` gives every device some of the units; `rows` some of the inputs.
        gather: with False, a layer split by columns returns its parts (`cn.width.Parts`), for a layer
            split by rows or for `softmax_cross_entropy`.
        devices: how many devices, or which; by default all, but no more than there are columns or rows.
        use_bias, kernel_initializer, bias_initializer, **options: as in Keras.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: as in Keras, if a part can
            have them: `L2` can, and norms of columns with `split="columns"`.

    Example:
        >>> import colonnade as cn, keras
        >>> model = keras.Sequential([
        ...     keras.Input([16]),
        ...     cn.width.Dense(1003, "relu", gather=False, devices=4),
        ...     cn.width.Dense(8, split="rows", devices=4),
        ... ])
        >>> [part.shape[1] for part in model.layers[0].kernel.parts]
        [251, 251, 251, 250]
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        *,
        split: str = "columns",
        gather: bool = True,
        devices: Devices = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **options: Any,
    ) -> None:
        self.activation = keras.activations.get(activation)
        rules = Rules.of(
            regularizers={"kernel": kernel_regularizer, "bias": bias_regularizer},
            constraints={"kernel": kernel_constraint, "bias": bias_constraint},
        )
        axes = {"kernel": split_axis(split), "bias": 0 if split == "columns" else None}
        problems = [
            *whole("units", units, 1, like=1024, numpy=True),
            *elementwise(self.activation, split, gather),
            *rules.problems(axes),
        ]
        super().__init__(
            split=split, gather=gather, devices=devices, rules=rules, problems=problems, **options
        )
        self.units, self.use_bias = units, use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        if split == "columns":
            self.settle(units)

    def build(self, input_shape: Any) -> None:
        inputs = input_shape[-1]
        self.settle(self.units if self.split == "columns" else inputs)
        axis = SHARED[self.split]
        self.kernel = self.add_parts("kernel", (inputs, self.units), axis, self.kernel_initializer)
        self.bias = None
        if self.use_bias:  # of a sum, the first device has the bias
            along = 0 if self.split == "columns" else None
            self.bias = self.add_parts("bias", (self.units,), along, self.bias_initializer)

    def call(self, inputs: Any) -> Any:
        arriving = self._arriving(inputs)
        if self.split == "columns":
            weights = zip(*(variable.parts for variable in self.logical), strict=True)
            return self.handed_on(
                [
                    on(device, self._columns, *read(device, own), *tensors)
                    for device, own, tensors in zip(self.devices, weights, arriving, strict=True)
                ]
            )
        sums = [
            on(device, self._product, *read(device, [kernel]), *tensors)
            for device, kernel, tensors in zip(self.devices, self.kernel.parts, arriving, strict=True)
        ]
        first = self.devices[0]
        bias = self.bias.parts if self.bias else ()
        return on(first, self._finished, total(sums, self.devices), *read(first, bias))

    def _arriving(self, inputs: Any) -> list[tuple[Any, ...]]:
        """What each device works on."""
        if self.split == "columns":
            return [(x,) for x in copies(inputs, self.devices)]
        return [(x,) for x in (inputs if isinstance(inputs, list) else self.pieces(inputs))]

    def _columns(self, kernel: Any, *rest: Any) -> Any:
        bias, tensors = (rest[:1], rest[1:]) if self.bias else ((), rest)
        return self._finished(self._product(kernel, *tensors), *bias)

    def _product(self, kernel: Any, x: Any) -> Any:
        return tf.matmul(x, kernel) if x.shape.rank == 2 else tf.tensordot(x, kernel, 1)

    def _finished(self, product: Any, *bias: Any) -> Any:
        return self.activation(tf.nn.bias_add(product, bias[0]) if bias else product)

    def compute_output_spec(self, inputs: Any) -> Any:
        """One tensor to Keras, also where it is in parts: so a model is the same on any number of devices."""
        return keras.KerasTensor((*inputs.shape[:-1], self.units), dtype=self.compute_dtype)

    def _unusable(self, inputs: Any) -> Iterator[Problem]:
        if is_sparse(inputs):
            yield Problem("inputs", "sparse", "must be dense", "Use cn.width.SparseDense")
        elif isinstance(inputs, tf.RaggedTensor):
            yield Problem("inputs", "ragged", "must be dense", "Try inputs.to_tensor()")
        elif isinstance(inputs, Parts) and self.split == "columns":
            rule = "are in parts, and every column of the result needs all of them"
            yield Problem("inputs", inputs.sizes, rule, 'Choose split="rows", or gather in the layer before')

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }


@keras.saving.register_keras_serializable("colonnade.width")
class SparseDense(Dense):
    """`Dense` for a `tf.SparseTensor` of rank 2, which is never made dense.

    Its arguments are those of `Dense`. Split by columns, every device reads all entries; split by
    rows, each reads the entries that its rows of the kernel meet.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> x = tf.SparseTensor([[0, 2], [1, 0]], [1.0, 3.0], [2, 1000])
        >>> layer = cn.width.SparseDense(4, split="rows", devices=3, kernel_initializer="ones")
        >>> layer(x).numpy().tolist()
        [[1.0, 1.0, 1.0, 1.0], [3.0, 3.0, 3.0, 3.0]]
    """

    def _arriving(self, inputs: Any) -> list[tuple[Any, ...]]:
        if self.split == "columns":
            values = copies(inputs.values, self.devices)
            return [(inputs.indices, own, inputs.dense_shape) for own in values]
        arriving = []
        with tf.device(self.devices[0]):
            for _, start, size in self.places:
                shape = tf.stack([inputs.dense_shape[0], size])
                own = tf.sparse.slice(inputs, tf.constant([0, start], tf.int64), shape)
                arriving.append((own.indices, own.values, own.dense_shape))
        return arriving

    def _product(self, kernel: Any, *tensors: Any) -> Any:
        return tf.sparse.sparse_dense_matmul(tf.SparseTensor(*tensors), kernel)

    def _unusable(self, inputs: Any) -> Iterator[Problem]:
        if not is_sparse(inputs):
            fix = "Use cn.width.Dense; for a SciPy matrix cn.width.from_csr"
            yield Problem("inputs", type(inputs).__name__, "must be a tf.SparseTensor", fix)
        elif len(inputs.shape) != 2:
            yield Problem("inputs", tuple(inputs.shape), "must be of rank 2", "Try tf.sparse.reshape")


@keras.saving.register_keras_serializable("colonnade.width")
class Embedding(SplitLayer):
    """`keras.layers.Embedding` with its table split over devices.

    Args:
        input_dim: the size of the vocabulary.
        output_dim: the length of a vector.
        split: `columns` gives every device a piece of each vector; `rows` a piece of the vocabulary.
        gather: with False, a layer split by columns returns its parts.
        devices: how many devices, or which; by default all, but no more than there are columns or rows.
        embeddings_initializer, **options: as in Keras.
        embeddings_regularizer, embeddings_constraint: as in Keras, if a part can have them.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> layer = cn.width.Embedding(1000, 10, split="rows", devices=3)
        >>> layer(tf.constant([[1, 999]])).shape.as_list()
        [1, 2, 10]
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        split: str = "columns",
        gather: bool = True,
        devices: Devices = None,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        **options: Any,
    ) -> None:
        rules = Rules.of(
            regularizers={"embeddings": embeddings_regularizer},
            constraints={"embeddings": embeddings_constraint},
        )
        problems = [
            *whole("input_dim", input_dim, 1, like=1024, numpy=True),
            *whole("output_dim", output_dim, 1, like=1024, numpy=True),
            *rules.problems({"embeddings": split_axis(split)}),
        ]
        super().__init__(
            split=split, gather=gather, devices=devices, rules=rules, problems=problems, **options
        )
        self.input_dim, self.output_dim = input_dim, output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.autocast = False  # numbers of words are not to be rounded
        self.settle(output_dim if split == "columns" else input_dim)

    def build(self, input_shape: Any) -> None:
        axis = SHARED[self.split]
        shape = (self.input_dim, self.output_dim)
        self.embeddings = self.add_parts("embeddings", shape, axis, self.embeddings_initializer)

    def call(self, inputs: Any) -> Any:
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        if self.split == "columns":
            found = [
                on(device, self._looked_up, *read(device, [table]), ids)
                for device, table in zip(self.devices, self.embeddings.parts, strict=True)
            ]
            return self.handed_on(found)
        ids = self._in_vocabulary(ids)
        found = [
            on(device, self._own_rows(start, size), *read(device, [table]), ids)
            for (device, start, size), table in zip(self.places, self.embeddings.parts, strict=True)
        ]
        return total(found, self.devices)

    def _looked_up(self, table: Any, ids: Any) -> Any:
        return tf.cast(tf.gather(table, ids), self.compute_dtype)

    def _own_rows(self, start: int, size: int) -> Any:
        """Vectors of the words that a part has, and zeros for the others."""

        def own(table: Any, ids: Any) -> Any:
            mine = tf.where((ids >= start) & (ids < start + size))
            vectors = self._looked_up(table, tf.gather_nd(ids, mine) - start)
            shape = tf.concat([tf.shape(ids, mine.dtype), [self.output_dim]], axis=0)
            return tf.ensure_shape(tf.scatter_nd(mine, vectors, shape), [*ids.shape, self.output_dim])

        return own

    def _in_vocabulary(self, ids: Any) -> Any:
        """No part would miss a word that none of them has, so this is said here, as a lookup would."""
        inside = tf.reduce_all((ids >= 0) & (ids < self.input_dim))
        said = f"indices must be in [0, {self.input_dim}):"
        with tf.device("/device:CPU:0"), tf.control_dependencies([tf.debugging.Assert(inside, [said, ids])]):
            return tf.identity(ids)

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((*inputs.shape, self.output_dim), dtype=self.compute_dtype)

    def _unusable(self, inputs: Any) -> Iterator[Problem]:
        if is_sparse(inputs) or isinstance(inputs, tf.RaggedTensor | Parts):
            kind = type(inputs).__name__
            yield Problem("inputs", kind, "must be a dense tensor of whole numbers", "Try tf.sparse.to_dense")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }


# The dim of a weight that is split.
SHARED = {"columns": 1, "rows": 0}


def split_axis(split: Any) -> int | None:
    """The dim of a weight that is split; None where a user said nothing that is a split."""
    return SHARED.get(split) if isinstance(split, str) else None


def from_csr(matrix: Any) -> tf.SparseTensor:
    """A `tf.SparseTensor` from compressed rows, such as a SciPy CSR matrix, without making it dense.

    Args:
        matrix: anything with `indptr`, `indices`, `data` and `shape`.

    Example:
        >>> import colonnade as cn
        >>> from types import SimpleNamespace
        >>> rows = SimpleNamespace(indptr=[0, 1, 3], indices=[2, 0, 1], data=[5.0, 6.0, 7.0], shape=(2, 3))
        >>> cn.width.from_csr(rows).indices.numpy().tolist()
        [[0, 2], [1, 0], [1, 1]]
    """
    columns = tf.cast(matrix.indices, tf.int64)
    rows = tf.RaggedTensor.from_row_splits(columns, tf.cast(matrix.indptr, tf.int64)).value_rowids()
    found = tf.SparseTensor(tf.stack([rows, columns], axis=1), matrix.data, matrix.shape)
    return tf.sparse.reorder(found)  # SciPy does not always sort the columns of a row


def is_sparse(inputs: Any) -> bool:
    """Whether an input is sparse, or stands for a sparse one while Keras builds a model."""
    return isinstance(inputs, tf.SparseTensor) or bool(getattr(inputs, "sparse", False))


def read(device: str, weights: Sequence[Any]) -> list[Any]:
    """The values of variables, read where they live."""
    with tf.device(device):
        return [tf.convert_to_tensor(weight) for weight in weights]
