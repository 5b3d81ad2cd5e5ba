"""A line through points, to be trained."""

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1).astype("float32")


def linear(rate=0.05, **options):
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    b = tf.Variable(tf.zeros([1]), name="b")

    def loss(x, y):
        return tf.squeeze((x @ w + b - y) ** 2, axis=1)

    return w, cn.Trainer(loss, keras.optimizers.SGD(rate), **{"devices": 2, **options})


def poisoned(home, on_nan="stop", **options):
    w = tf.Variable(tf.ones([4, 1]), name="weights")
    count = tf.Variable(0.0, trainable=False)

    def loss(x, y):
        count.assign_add(1.0)
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    # Decay needs no gradient, so it must be told that the gradient is bad.
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=0.5)
    trainer = cn.Trainer(loss, optimizer, devices=3, variables=home, on_nan=on_nan, **options)
    bad = X[:12].copy()
    bad[5] = np.nan  # rows 4 to 7 are device 1's, which is not the last
    return w, count, trainer, bad
