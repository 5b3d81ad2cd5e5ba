"""A penalty is computed once, scaled as the loss is, and looked at before it is scaled."""

import keras
import numpy as np
import tensorflow as tf

from colonnade.run.engine.penalty import LossScale, Penalty

CPU = "/device:CPU:0"


def handles(captures):
    return {capture.variable.ref(): capture.variable.handle for capture in captures}


def test_it_is_added_to_gradients_and_loss():
    w, b = tf.Variable([3.0, 4.0], name="w"), tf.Variable(1.0, name="b")
    penalty = Penalty(lambda: tf.reduce_sum(w**2), [w, b])
    gradients = [tf.constant([1.0, 1.0]), tf.constant(7.0)]
    totals, loss, health = penalty.added(gradients, tf.constant(2.0), CPU, handles, lambda g: 10 * g)
    np.testing.assert_array_equal(totals[0], [61.0, 81.0])
    assert float(totals[1]) == 7.0  # it has no gradient for b
    assert float(loss) == 27.0
    assert np.isfinite(health).all()
    assert penalty.names == ["the penalty", "w:0", "b:0"]


def test_what_is_not_finite_shows():
    w = tf.Variable([0.0])
    penalty = Penalty(lambda: tf.reduce_sum(tf.sqrt(w)), [w])
    _, _, health = penalty.added([tf.constant([1.0])], tf.constant(0.0), CPU, handles, lambda g: g)
    assert np.isfinite(health).tolist() == [True, False]


def test_the_scale_of_a_loss_is_read_when_it_is_a_variable():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    optimizer.build([keras.Variable([1.0])])
    scale = LossScale(optimizer)
    assert float(scale.at(CPU, handles)(tf.constant(2.0))) == 16.0
    optimizer.dynamic_scale.assign(4.0)
    assert float(scale.at(CPU, handles)(tf.constant(2.0))) == 8.0
    assert (
        float(LossScale(keras.optimizers.SGD(loss_scale_factor=3.0)).at(CPU, handles)(tf.constant(2.0)))
        == 6.0
    )
