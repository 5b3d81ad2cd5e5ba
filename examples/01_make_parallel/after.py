"""Fit y = 5x^2 + 3 with Adam, on all devices."""

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

cn.setup(virtual=2)

x = np.random.default_rng(0).uniform(-1, 1, (1000, 1)).astype("float32")
y = 5 * x**2 + 3

w = tf.Variable(tf.zeros([3, 1]))
optimizer = keras.optimizers.Adam(0.1)


def model(x):
    return tf.concat([x * x, x, tf.ones_like(x)], axis=1) @ w


@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((cn.make_parallel(model, 2, x=x) - y) ** 2)
    optimizer.apply([tape.gradient(loss, w)], [w])
    return loss


for _ in range(1000):
    loss = train(x, y)

print("w =", w.numpy().ravel().round(4), " loss =", float(loss))
