"""A dense layer of sparse input, in parts, against Keras's on one device."""

from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from wide import CLOSE, sparse

import colonnade as cn


def graph_ops(function, *args):
    graph = tf.function(function, autograph=False).get_concrete_function(*args).graph.as_graph_def()
    return Counter(node.op for node in graph.node)


@pytest.mark.parametrize("split", ["columns", "rows"])
def test_sparse_dense_equals_dense(split):
    x = sparse()
    keras.utils.set_random_seed(3)
    plain = keras.layers.Dense(7)
    keras.utils.set_random_seed(3)
    layer = cn.width.SparseDense(7, split=split, devices=4)

    @tf.function(autograph=False)
    def of_values(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            y = layer(tf.SparseTensor(x.indices, values, x.dense_shape))
        return y, tape.gradient(y, values)

    y, gradient = of_values(x.values)
    dense = tf.sparse.to_dense(x)
    with tf.GradientTape() as tape:
        tape.watch(dense)
        wanted = plain(dense)
    np.testing.assert_allclose(y, wanted, **CLOSE)
    np.testing.assert_allclose(gradient, tf.gather_nd(tape.gradient(wanted, dense), x.indices), **CLOSE)
    ops = graph_ops(of_values.python_function, x.values)
    assert ops["SparseToDense"] == 0
    assert ops["SparseTensorDenseMatMul"] >= 4


def test_compressed_rows():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = sparse()
    csr = scipy_sparse.csr_matrix(tf.sparse.to_dense(x).numpy())
    np.testing.assert_array_equal(tf.sparse.to_dense(cn.width.from_csr(csr)), tf.sparse.to_dense(x))
