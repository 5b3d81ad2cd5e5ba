"""People try a program out on ones: what a batch normalisation makes of equal examples is only rounding."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn


def norms(layers, width, synchronized):
    keras.utils.set_random_seed(1)
    stack = []
    for _ in range(layers):
        norm = keras.layers.BatchNormalization(synchronized=synchronized)
        stack += [keras.layers.Dense(width, "tanh"), norm]
    return keras.Sequential([keras.Input([width]), *stack, keras.layers.Dense(1)])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("layers", "width", "synchronized", "rows", "devices"),
    [(2, 64, True, 1024, 4), (3, 16, False, 500, 4), (4, 64, True, 256, 4), (5, 32, False, 96, 2)],
)
def test_norms_are_trained_on_ones(layers, width, synchronized, rows, devices):
    x = np.ones([rows, width], "float32")
    model = norms(layers, width, synchronized)
    model.compile("adam", "mse")
    cn.fit(model, x, x[:, :1], batch_size=rows, devices=devices, verbose=0, prove=True)


def test_a_sum_is_seen_on_ones():
    weight, ones = tf.Variable(2.0), np.ones([8, 4], "float32")
    trainer = cn.Trainer(lambda x: tf.reduce_sum(weight * x), keras.optimizers.SGD(0.1), devices=2)
    with pytest.raises(cn.InvalidArgument, match="is a sum over the examples"):
        trainer.fit((ones,), batch_size=8, steps=1, progress=False)
