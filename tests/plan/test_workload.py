"""`cn.workload`: what is measured, and that nothing of the user's is changed by it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.plan import graph_time
from colonnade.run.plan import workload as module


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for timed in (module, graph_time):
        monkeypatch.setattr(timed, "SECONDS", 0.02)
        monkeypatch.setattr(timed, "ROUNDS", 2)


def network():
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([8]),
            keras.layers.Dense(16, name="wide"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5, name="drop"),
            keras.layers.Dense(4, name="narrow"),
        ]
    )


X, Y = tf.random.stateless_normal([32, 8], seed=[1, 2]), tf.zeros([32], tf.int32)


def test_a_model_is_measured_layer_by_layer_and_is_as_it_was():
    model = network()
    before = [v.numpy().copy() for v in model.variables]

    def loss(x, y):
        return keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)

    adam = keras.optimizers.Adam(0.1)
    work = cn.workload(loss, adam, X, Y, layers=model, memory=False, name="small")
    assert [layer.name for layer in work.layers] == ["wide", "norm", "drop", "narrow"]
    assert [layer.parameters // 4 for layer in work.layers] == [8 * 16 + 16, 32, 0, 16 * 4 + 4]
    assert [layer.output for layer in work.layers] == [64, 64, 64, 16]
    assert work.timed
    assert [timing.batch for timing in work.layers[0].timings] == [4, 32]
    assert (work.name, work.batch, work.input, work.dtype, work.device) == (
        "small",
        32,
        36,
        "float32",
        "CPU:0",
    )
    assert work.slots >= 2 * work.parameters
    assert work.update > 0
    assert work.overhead >= 0
    assert 0 < work.cores < 64
    assert all(0 < timing.gain < 64 for timing in work.layers[0].timings)
    # 2 x inputs x outputs for each dense layer, at least.
    assert work.flops >= 2 * (8 * 16 + 16 * 4)
    for now, then in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(now.numpy(), then)
    assert not adam.built
    assert cn.Workload.from_json(work.to_json()) == work


def test_a_model_stands_for_its_loss_and_its_layers():
    work = cn.workload(network(), keras.optimizers.SGD(), X, memory=False)
    assert len(work.layers) == 4


@pytest.mark.long
def test_activations_are_estimated_where_that_is_asked_for():
    work = cn.workload(network(), keras.optimizers.SGD(), X)
    assert sum(layer.activations for layer in work.layers) >= sum(layer.output for layer in work.layers) > 0


def test_sparse_gradients_are_counted_by_their_rows():
    table = tf.Variable(tf.zeros([1000, 4]), name="table")
    w = tf.Variable(tf.ones([4]))

    def loss(ids):
        return tf.reduce_sum(tf.gather(table, ids) * w, axis=[1, 2])

    # Adam makes dense gradients of them, for which it must know their shapes.
    work = cn.workload(loss, keras.optimizers.Adam(), tf.zeros([16, 3], tf.int32), memory=False)
    (whole,) = work.layers
    assert (whole.parameters, whole.sparse) == (16_016, 16_000)
    assert whole.rows in (3 * (16 + 4), 3 * (16 + 8))


def test_larger_batches_take_longer():
    w = tf.Variable(tf.zeros([256, 256]))

    def loss(x):
        for _ in range(4):
            x = tf.tanh(x @ w)
        return tf.reduce_sum(x, axis=1)

    small, large = (
        cn.workload(loss, keras.optimizers.SGD(), tf.ones([1024, 256]), memory=False).layers[0].timings
    )
    assert large.forward + large.backward > small.forward + small.backward


@pytest.mark.parametrize(("loss", "optimizer"), [("loss", keras.optimizers.SGD()), (lambda x: x, "sgd")])
def test_what_cannot_be_measured(loss, optimizer):
    with pytest.raises(cn.InvalidArgument, match=r"workload\(\)"):
        cn.workload(loss, optimizer, X)
