"""Losses of layers that are 0 at first, of which the first batch does not tell whether they are sums."""

import keras
import numpy as np
import pytest
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 3)).astype("float32"), RNG.normal(size=(24, 1)).astype("float32")
X[:8] = -np.abs(X[:8])  # of the first batch nothing is above 0
WAYS = {
    "sum": lambda each: ops.sum(each),
    "mean": lambda each: ops.mean(each),
    "one for each example": lambda each: ops.sum(each, axis=1),
}


class Hinge(keras.layers.Layer):
    def __init__(self, way):
        super().__init__()
        self.way = way

    def call(self, x):
        self.add_loss(0.1 * self.way(ops.relu(x)))
        return x


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_is_0_on_the_first_batch_is_looked_at_later(way):
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 2})):
        keras.utils.set_random_seed(0)
        scale = keras.layers.Dense(3, kernel_initializer="identity", kernel_constraint="non_neg")
        made = keras.Sequential([keras.Input([3]), scale, Hinge(WAYS[way]), keras.layers.Dense(1)])
        made.compile(keras.optimizers.SGD(1e-3), "mse")
        history = fit(made, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, **more).history
        both.append([history["loss"], *made.get_weights()])
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)
