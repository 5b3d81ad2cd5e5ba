"""Models in a pipeline and on one device, and how equal they must be."""

import keras
import numpy as np
import pytest

import colonnade as cn

# Sums over micro-batches are taken in another order than over the batch: some units in the last place of
# float32, relative to the largest value.
TOLERANCE = 2e-5
DENSE = keras.layers.Dense


def given(shape, scale=0.4, seed=0):
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype("float32")


def with_weights(model):
    """Always the same weights, however Keras would have drawn them."""
    for i, variable in enumerate(model.trainable_variables):
        variable.assign(given(variable.shape, seed=i))
    return model


def mlp(layers=4):
    sizes = [keras.layers.Dense(8, "tanh") for _ in range(layers - 1)]
    return with_weights(keras.Sequential([keras.Input([6]), *sizes, keras.layers.Dense(3)]))


X, Y = given([99, 6], 1.0), np.random.default_rng(1).integers(0, 3, 99)


def classify(model):
    def loss(x, y):
        logits = model(x, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(y, logits)}

    return loss


def train(build, batch, steps=2, loss=classify, optimizer=None, **pipeline):
    """Losses and variables after some steps on one device, or in a pipeline if there is one."""
    model = build()
    piped = cn.Pipeline(model, **pipeline) if pipeline else None
    optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9)
    trainer = cn.Trainer(loss(piped or model), optimizer, devices=piped or 1)
    records = [trainer.train_on_batch(*batch) for _ in range(steps)]
    return records, [v.numpy() for v in trainer.parameters], trainer


def assert_equal(found, wanted, tolerance=TOLERANCE):
    records, variables, _ = found
    expected, originals, _ = wanted
    for a, b in zip(records, expected, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=tolerance)
        assert a.metrics == pytest.approx(b.metrics, rel=tolerance)
    assert len(variables) == len(originals)
    for a, b in zip(variables, originals, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


def skips():
    """A value of the first layer is used by the last but one, past a stage that does not know it."""
    inputs = keras.Input([6])
    first = keras.layers.Dense(8, "tanh")(inputs)
    second = keras.layers.Dense(8, "tanh")(first)
    third = keras.layers.Dense(8, "tanh")(second)
    shortcut = keras.layers.Dense(8)(first)
    joined = keras.layers.Concatenate()([third * 2.0 + shortcut, inputs])
    return with_weights(keras.Model(inputs, keras.layers.Dense(3)(joined)))
