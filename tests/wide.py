"""Models whose layers are split by width, and the same of plain Keras layers."""

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
WIDTH = 1003


def sparse(rows=6, width=50, seed=0):
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random([rows, width]) < 0.1, rng.random([rows, width]), 0).astype("float32")
    dense[:, 3] = 1.0
    return tf.sparse.from_dense(dense)


def autoencoder(devices, width=WIDTH, inner=32):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([width], sparse=True),
            cn.width.SparseDense(inner, "relu", gather=False, devices=devices),
            cn.width.Dense(inner, "relu", split="rows", devices=devices),
            cn.width.Dense(width, gather=False, devices=devices),
        ]
    )


def plain_autoencoder(width=WIDTH, inner=32):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([width]),
            keras.layers.Dense(inner, "relu"),
            keras.layers.Dense(inner, "relu"),
            keras.layers.Dense(width),
        ]
    )
