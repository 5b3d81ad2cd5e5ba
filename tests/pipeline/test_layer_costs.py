"""Layers are measured so that stages are balanced; measuring leaves no trace."""

import keras
import numpy as np
import tensorflow as tf
from piped import DENSE, TOLERANCE, X, Y, classify, given, mlp

import colonnade as cn
from colonnade.run.pipeline import layer_costs


def test_auto_balances_what_was_measured():
    wide = [keras.layers.Dense(n) for n in (4, 512, 512, 4)]
    model = keras.Sequential([keras.Input([512]), *wide])
    pipeline = cn.Pipeline(model, 2, micro_batches=2)
    assert pipeline.placement is None
    assert pipeline(tf.ones([64, 512])).shape == (64, 4)
    assert pipeline.placement in ((0, 0, 1, 1), (0, 0, 0, 1))


def test_backward_is_measured_too_inside_a_trace(monkeypatch):
    """Where a function is being traced, no tape records unless it is in another thread."""
    model = mlp(3)
    pipeline = cn.Pipeline(model, 2, micro_batches=2)
    seen = []

    class Work(layer_costs._Work):
        def __init__(self, *args):
            super().__init__(*args)
            seen.append([variable.shape for variable in self.parameters])

    monkeypatch.setattr(layer_costs, "_Work", Work)
    cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(X, Y)
    assert seen == [[v.shape for v in layer.trainable_variables] for layer in model.layers]


def test_measuring_changes_nothing():
    norm, drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input([6]), norm, drop, keras.layers.Dense(3)])
    before = [v.numpy() for v in model.variables] + [drop.seed_generator.state.numpy()]
    pipeline = cn.Pipeline(model, 2, micro_batches=2)
    pipeline(X, training=False)
    assert pipeline.placement is not None
    after = [v.numpy() for v in model.variables] + [drop.seed_generator.state.numpy()]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_sparse_batch_with_auto():
    kernel = tf.Variable(given([5, 4]))
    stages = [lambda s: tf.sparse.sparse_dense_matmul(s, kernel), DENSE(3), DENSE(2)]
    pipeline = cn.Pipeline(stages, 2, micro_batches=2)
    entries = [[0, 2], [1, 4], [3, 0], [3, 1]]
    for count in (3, 4):  # also where a batch has another number of entries than the first
        batch = tf.SparseTensor(entries[:count], [1.0, 2.0, 3.0, 4.0][:count], [4, 5])
        wanted = stages[2](stages[1](tf.sparse.to_dense(batch) @ kernel))
        np.testing.assert_allclose(pipeline(batch), wanted, rtol=TOLERANCE, atol=TOLERANCE)
