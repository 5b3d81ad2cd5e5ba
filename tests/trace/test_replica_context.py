"""Sums over the replicas that a loss function asks for itself, as Keras's layers do."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from norms import CLOSE, batches

import colonnade as cn
from colonnade.run.trace.traced import trace


def summed(value):
    return tf.distribute.get_replica_context().all_reduce("sum", value)


def test_a_sum_is_marked_and_so_is_that_of_its_gradient():
    def loss(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = summed(tf.reduce_sum(x**2))
        return total, tape.gradient(total, x)

    traced = trace(loss, tf.TensorSpec([3]))
    assert len(traced.marks) == 2
    total, gradient = traced.on("/device:CPU:0", [tf.constant([1.0, 2.0, 3.0])])
    assert float(total) == 14.0  # on one replica the sum is the value
    assert gradient.numpy().tolist() == [2.0, 4.0, 6.0]


def test_every_tensor_of_a_nest_is_summed():
    traced = trace(lambda x: summed([x, {"twice": 2 * x}]), tf.TensorSpec([]))
    assert len(traced.marks) == 2


def test_without_a_sum_there_is_no_mark():
    assert trace(lambda x: x + 1.0, tf.TensorSpec([])).marks == ()


def test_a_mean_over_replicas_is_refused():
    w = tf.Variable(1.0)

    def loss(x):
        mean = tf.distribute.get_replica_context().all_reduce("mean", tf.reduce_mean(x))
        return w * (x[:, 0] - mean)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=2)
    with pytest.raises(cn.InvalidArgument, match="reduce_op"):
        trainer.train_on_batch(next(batches(12))[0])


def test_a_sum_over_replicas_in_a_function_of_ones_own():
    """What Keras uses is open to every loss function: here, losses against the batch's mean."""
    moved = []
    x = next(batches(13))[0]
    for devices in (1, 3):
        w = tf.Variable([1.0, -1.0, 0.5, 2.0])

        def loss(x, w=w):
            z = tf.linalg.matvec(x, w)
            total = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(z))
            return (z - total / 13.0) ** 2

        cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=devices).train_on_batch(x)
        moved.append(w.numpy())
    np.testing.assert_allclose(moved[1], moved[0], **CLOSE)
