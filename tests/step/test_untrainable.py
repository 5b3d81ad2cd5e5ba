"""Losses and variables that cannot be trained: one clear error each, before anything is changed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept

import colonnade as cn

X = np.ones((6, 3), "float32")
SYNCS = {"sync": cn.Synchronous(), "async": cn.Asynchronous(), "local": cn.LocalSGD(2)}


def refused(loss, said, *variables, sync="sync", optimizer=None, devices=2):
    before = [variable.numpy() for variable in variables]
    optimizer = optimizer or keras.optimizers.SGD(0.1)
    trainer = cn.Trainer(loss, optimizer, devices=devices, sync=SYNCS[sync])
    with pytest.raises(cn.InvalidArgument, match=said):
        trainer.train_on_batch(X)
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(variables, before, strict=True))
    assert not optimizer.built


def kernel(dtype="float32"):
    return tf.Variable(np.ones((3, 1), dtype), name="kernel")


@pytest.mark.parametrize("sync", kept(SYNCS, "sync"))
def test_complex_variables(sync):
    w = kernel("complex64")
    loss = lambda x: tf.abs(tf.squeeze(tf.cast(x, w.dtype) @ w, 1)) ** 2  # noqa: E731
    refused(loss, "variable='kernel:0': is complex.*tf.complex", w, sync=sync, devices=1)
    refused(loss, "variable='kernel:0': is complex", w, sync=sync)


def test_a_complex_variable_that_the_loss_changes():
    w, seen = kernel(), tf.Variable(0j, trainable=False, name="seen")

    def loss(x):
        seen.assign_add(tf.cast(tf.reduce_sum(x), seen.dtype))
        return tf.squeeze(x @ w, 1)

    refused(loss, "variable='seen:0': is complex", w, seen)


def test_a_complex_loss():
    w = kernel()
    refused(lambda x: tf.cast(tf.squeeze(x @ w, 1), tf.complex64), "loss='complex64': must be real", w)


@pytest.mark.parametrize("sync", kept(SYNCS, "sync"))
def test_muon_asks_for_keras_variables(sync):
    w = kernel()
    muon = keras.optimizers.Muon(0.1)
    for optimizer in (muon, keras.optimizers.LossScaleOptimizer(muon)):
        refused(
            lambda x: tf.squeeze(x @ w, 1), "kernel:0.*Muon asks for Keras", w, sync=sync, optimizer=optimizer
        )


@pytest.mark.long
def test_muon_trains_keras_variables_as_on_one_device():
    def run(devices):
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.set_weights([np.linspace(-1, 1, v.numpy().size).reshape(v.shape) for v in model.weights])
        trainer = cn.Trainer(
            lambda x: tf.squeeze(model(x), 1) ** 2, keras.optimizers.Muon(0.1), devices=devices
        )
        trainer.train_on_batch(X)
        return model.get_weights()

    for found, expected in zip(run(2), run(1), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda x, w: tf.ragged.constant([[1.0], [2.0, 3.0]]) * tf.reduce_sum(w), "loss='RaggedTensor'"),
        (lambda x, w: tf.sparse.from_dense(x) * tf.reduce_sum(w), "loss='SparseTensor'"),
        (lambda x, w: (tf.squeeze(x @ w, 1), {"m": tf.RaggedTensor.from_tensor(x)}), "m='RaggedTensor'"),
        (lambda x, w: cn.Weighted(tf.RaggedTensor.from_tensor(x @ w), x), "loss='RaggedTensor'"),
        (lambda x, w: tf.py_function(abs, [tf.squeeze(x @ w, 1)], tf.float32), "does not know.*ensure_shape"),
    ],
)
def test_what_cannot_be_added_up(value, said):
    w = kernel()
    refused(lambda x: value(x, w), said, w)


def squared(losses):
    return tf.ensure_shape(tf.py_function(lambda v: v**2, [losses], tf.float32), losses.shape)


@pytest.mark.parametrize("sync", kept(SYNCS, "local"))
def test_python_code_that_is_differentiated_on_several_devices(sync):
    """TensorFlow keeps one tape for it: a replica got the gradient of another's values, or an error."""
    w = kernel()
    said = "tf.py_function.*is differentiated"
    refused(lambda x: squared(tf.squeeze(x @ w, 1)), said, w, sync=sync)
    nested = tf.function(lambda x: squared(tf.squeeze(x @ w, 1)))
    refused(nested, said, w, sync=sync)


def test_python_code_that_is_differentiated_in_a_pipeline():
    w, v = kernel(), tf.Variable(1.0)
    pipeline = cn.Pipeline([lambda x: squared(tf.squeeze(x @ w, 1)), lambda x: x * v], 2, micro_batches=2)
    trainer = cn.Trainer(lambda x: pipeline(x), keras.optimizers.SGD(0.1), devices=pipeline)
    with pytest.raises(cn.InvalidArgument, match=r"tf.py_function.*is differentiated"):
        trainer.train_on_batch(X)


def test_python_code_on_one_device_and_without_a_gradient():
    w = kernel()
    one = cn.Trainer(lambda x: squared(tf.squeeze(x @ w, 1)), keras.optimizers.SGD(0.1), devices=1)
    one.train_on_batch(X)
    assert w.numpy().tolist() == pytest.approx(np.full((3, 1), 1 - 0.1 * 6))
    two = cn.Trainer(
        lambda x: tf.squeeze(x @ w, 1) * tf.stop_gradient(squared(x[:, 0])),
        keras.optimizers.SGD(0.1),
        devices=2,
    )
    two.train_on_batch(X)
    assert w.numpy().tolist() == pytest.approx(np.full((3, 1), 1 - 0.1 * 7))
