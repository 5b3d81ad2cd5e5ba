"""A linear model whose replicas train by themselves, and the same in NumPy."""

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4))
Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * RNG.normal(size=(48, 1))
START = np.linspace(-1, 1, 4)[:, None]
RATE = 0.0625  # exact in float32, in which Keras keeps it


def linear(sync, optimizer=None, devices=3, **options):
    w = tf.Variable(START, name="weights")

    def loss(x, y):
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    optimizer = optimizer or keras.optimizers.SGD(RATE)
    return w, cn.Trainer(loss, optimizer, devices=devices, sync=sync, **options)


def gradient(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x)


def batches(steps, size=24):
    for k in range(steps):
        rows = np.arange(k * size, (k + 1) * size) % len(X)
        yield X[rows], Y[rows]


def numpy_local(steps, devices, every, meet, size=24):
    """Local steps in NumPy; `meet(replicas, centre)` returns both after a join."""
    replicas, centre = [START] * devices, START
    for k, (x, y) in enumerate(batches(steps, size), start=1):
        slices = zip(np.array_split(x, devices), np.array_split(y, devices), strict=True)
        replicas = [w - RATE * gradient(w, *s) for w, s in zip(replicas, slices, strict=True)]
        if k % every == 0:
            replicas, centre = meet(replicas, centre)
    return replicas, centre


def trained(sync, steps, size=24, **options):
    w, trainer = linear(sync, **options)
    trainer.fit(batches(steps, size), progress=False, log_every=7)
    return w.numpy(), trainer


def averaged(replicas, _):
    mean = np.mean(replicas, axis=0)
    return [mean] * len(replicas), mean
