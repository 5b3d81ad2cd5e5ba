"""Losses of layers that are 0 at first, of which the first batch does not tell whether they are sums."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from compared_fits import assert_that_of_keras, dense
from keras import ops

import colonnade as cn
from colonnade.run.prove.proof import InSlices
from colonnade.run.prove.verdict import TOO_LARGE

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


class Adds(keras.layers.Layer):
    def __init__(self, loss, **options):
        super().__init__(**options)
        self.loss = loss

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


def sum_of_squares(x):
    return 0.1 * ops.sum(x**2)


def test_layers_of_the_same_name_are_told_apart():
    def make():
        inner = keras.Sequential([Adds(lambda x: ops.mean(x**2), name="adds")])
        return dense(keras.Sequential, Adds(sum_of_squares, name="adds"), inner, loss="mse")

    assert_that_of_keras(make)


def test_a_loss_that_is_always_0_is_looked_at_once(monkeypatch):
    """And not before every step."""
    looks, outputs = [], InSlices.outputs
    slices = InSlices.outputs_of_slices
    monkeypatch.setattr(InSlices, "outputs", lambda *given: looks.append("all") or outputs(*given))
    monkeypatch.setattr(InSlices, "outputs_of_slices", lambda look: looks.append("slices") or slices(look))
    layer = keras.layers.Dense(6, activity_regularizer=keras.regularizers.L2(0.0))
    made = dense(keras.Sequential, layer, loss="mse")
    x = np.ones((16, 6), "float32")
    cn.fit(made, x, x, batch_size=4, devices=2, verbose=0)
    assert not looks


def test_what_is_too_large_for_one_device_is_told_by_the_halves_of_a_slice(monkeypatch, capsys):
    """Every run of the whole batch is one too large for the memory."""
    shares, ran = InSlices._shares, []

    def limited(look, traces, counts, batch, scale=1.0):
        ran.append(tuple(counts))
        if max(counts) > 4:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return shares(look, traces, counts, batch, scale)

    monkeypatch.setattr(InSlices, "_shares", limited)
    x = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
    assert_that_of_keras(lambda: dense(keras.Sequential, Adds(sum_of_squares), loss="mse"), x, x)
    assert {(8,), (4,), (2, 2)} <= set(ran)
    made = dense(keras.Sequential, Adds(sum_of_squares), loss="mse")
    cn.fit(made, x, x, batch_size=8, devices=2, verbose=2)
    assert TOO_LARGE in capsys.readouterr().out


def test_a_slice_of_one_example_does_not_tell_and_that_is_said(monkeypatch):
    def limited(look, traces, counts, batch, scale=1.0):
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    monkeypatch.setattr(InSlices, "_shares", limited)
    made = dense(keras.Sequential, Adds(sum_of_squares, name="adds"), loss="mse")
    x = np.ones((2, 6), "float32")
    with pytest.warns(UserWarning, match="do not tell whether adds adds a mean or a sum"):
        cn.train_on_batch(made, x, x, devices=2)
