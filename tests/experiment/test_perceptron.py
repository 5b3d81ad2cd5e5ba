import numpy as np
import tensorflow as tf

from colonnade.experiment.perceptron import Perceptron

NET = Perceptron(inputs=6, hidden=5, classes=3)
RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.normal(size=(7, 6)), RNG.integers(0, 3, 7)


def test_the_gradient_by_hand_is_tensorflows():
    parameters = NET.start(RNG) + 0.1
    views = [tf.Variable(view) for view in NET.views(parameters)]
    with tf.GradientTape() as tape:
        logits = tf.tanh(IMAGES @ views[0] + views[1]) @ views[2] + views[3]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits))
    expected = np.concatenate([g.numpy().ravel() for g in tape.gradient(loss, views)])
    np.testing.assert_allclose(NET.gradient(parameters, IMAGES, LABELS), expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(NET.loss(parameters, IMAGES, LABELS), loss, rtol=1e-14)
    right = np.mean(logits.numpy().argmax(axis=1) == LABELS)
    assert NET.accuracy(parameters, IMAGES, LABELS) == right


def test_a_model_that_has_diverged_is_measured_without_a_warning():
    far = np.full(NET.size, 1e200)
    assert 0 <= NET.accuracy(far, IMAGES, LABELS) <= 1
    assert np.isfinite(NET.gradient(far, IMAGES, LABELS)).all()
