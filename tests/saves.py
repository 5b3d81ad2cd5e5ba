"""A small training that is saved, and what it saved."""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(103, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")


def batches(size=10):
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50, seed=5).batch(size)


def linear(devices=2, variables="auto", shape=(4, 1), dtype="float32", name="w", **options):
    w = tf.Variable(tf.zeros(shape, dtype), name=name)

    def loss(x, y):
        return tf.cast(tf.squeeze((tf.cast(x, w.dtype)[:, : shape[0]] @ w) ** 2, 1), "float32") - y[:, 0]

    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, name="sgd")
    return w, cn.Trainer(loss, optimizer, devices=devices, variables=variables, **options)


def saved(folder, **options):
    return cn.Checkpoint(folder, **{"every": 4, "keep": None, **options})


def steps_in(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in Path(folder).glob("step-*"))


def everything(trainer):
    return {name: np.asarray(v) for name, v in trainer._engine.state().variables().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not np.array_equal(one[name], other[name])] == []
