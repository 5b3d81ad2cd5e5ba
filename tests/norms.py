"""Small models with batch normalisation, how they are trained here, and how far two of them may be apart.

Tolerance: sums over slices add the same float32 numbers in another order. Measured differences after
five steps are at most 5e-7 on numbers of the size of 1; `CLOSE` leaves room for other kernels and is
far below what a missing part of the synchronisation changes (1e-2 and more).
"""

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
FAR = 1e-2


def norm(*, synchronized=True, **options):
    return keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.8, **options)


def stacked(synchronized):
    """Two layers in sequence: the sums of the second need those of the first."""
    layers = keras.layers
    return [
        keras.Input([4]),
        layers.Dense(5, activation="tanh"),
        norm(synchronized=synchronized),
        layers.Dense(3),
        norm(synchronized=synchronized),
        layers.Dense(1),
    ]


def convolutional(synchronized):
    layers = keras.layers
    return [
        keras.Input([4]),
        layers.Reshape([2, 2, 1]),
        layers.Conv2D(3, 2, padding="same", use_bias=False),
        norm(synchronized=synchronized),
        layers.ReLU(),
        layers.Flatten(),
        layers.Dense(1),
    ]


def twice(synchronized):
    """One layer called two times: it writes its moving averages two times in a step."""
    shared = norm(synchronized=synchronized)
    layers = keras.layers
    return [
        keras.Input([4]),
        layers.Dense(4),
        shared,
        layers.Dense(4, activation="tanh"),
        shared,
        layers.Dense(1),
    ]


def batches(rows, steps=5, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        x = rng.normal(1.0, 2.0, [rows, 4]).astype("float32")
        yield x, (x[:, :1] - x[:, 1:2] * x[:, 2:3]).astype("float32")


def built(layers, synchronized):
    keras.utils.set_random_seed(7)
    return keras.Sequential(layers(synchronized))


def loss_of(model):
    def loss(x, y):
        return tf.squeeze((tf.cast(model(x, training=True), y.dtype) - y) ** 2, axis=1)

    return loss


def trained(layers, devices, *, synchronized=True, variables="shared", rows=12, optimizer=None, **options):
    """The losses of some steps, and all variables of the model after them."""
    model = built(layers, synchronized)
    optimizer = optimizer or keras.optimizers.SGD(0.05, momentum=0.9)
    trainer = cn.Trainer(loss_of(model), optimizer, devices=devices, variables=variables, **options)
    losses = [trainer.train_on_batch(x, y).loss for x, y in batches(rows)]
    return losses, values(model)


def values(model):
    return {v.path: v.numpy() for v in model.variables if v.dtype == "float32"}


def assert_same(found, expected):
    np.testing.assert_allclose(found[0], expected[0], **CLOSE)
    for (name, value), other in zip(found[1].items(), expected[1].values(), strict=True):
        np.testing.assert_allclose(value, other, err_msg=name, **CLOSE)


def difference(found, expected):
    pairs = zip(found[1].values(), expected[1].values(), strict=True)
    return max(float(np.abs(a - b).max()) for a, b in pairs)
