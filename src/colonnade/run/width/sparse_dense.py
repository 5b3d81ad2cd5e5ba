"""A dense layer split by width whose input is sparse, and stays so; and how a SciPy matrix becomes one."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.move.on_device import copies
from colonnade.run.width.dense import Dense
from colonnade.run.width.split_layer import is_sparse


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
    sparse = tf.SparseTensor(tf.stack([rows, columns], axis=1), matrix.data, matrix.shape)
    return tf.sparse.reorder(sparse)  # SciPy does not always sort the columns of a row
