"""A linear model that is trained asynchronously, and the same in ten lines of NumPy."""

from collections import deque

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * RNG.normal(size=(60, 1))
START = np.linspace(-1, 1, 4)[:, None]
RATE = 0.03125  # exact in float32, in which Keras keeps it


def linear(sync, devices=3, optimizer=None, **options):
    w = tf.Variable(START, name="weights")

    def loss(x, y):
        error = tf.squeeze(x @ w - y, axis=1)
        return error**2, {"absolute": tf.abs(error)}

    optimizer = optimizer or keras.optimizers.SGD(RATE)
    return w, cn.Trainer(loss, optimizer, devices=devices, sync=sync, **options)


def batches(steps, size=10):
    for k in range(steps):
        rows = np.arange(k * size, (k + 1) * size) % len(X)
        yield X[rows], Y[rows]


def reference(order, data, devices, damping=False):
    """Ten lines of NumPy: who reads takes the next slice, who applies moves by what it read."""
    queue = deque((x, y) for b in data for x, y in zip(*(np.array_split(a, devices) for a in b), strict=True))
    w, held, updates, ages = START, {}, 0, []
    for kind, device in order:
        if kind == "read" and queue:
            held[device] = (*queue.popleft(), w, updates)
        elif kind == "apply" and device in held:
            x, y, old, read_at = held.pop(device)
            ages.append(updates - read_at)
            w = w - RATE / (1 + damping * ages[-1]) * 2 * x.T @ (x @ old - y) / len(x)
            updates += 1
        if not queue and not held:
            return w, ages
    raise AssertionError("the order is too short")
