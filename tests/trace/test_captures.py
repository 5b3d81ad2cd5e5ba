"""Loops inside a loss function, such as those of recurrent layers, which read variables at every turn."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.trace.captures import captures

RNG = np.random.default_rng(0)
X = RNG.normal(size=(11, 7, 3)).astype("float32")
Y = RNG.normal(size=(11, 2)).astype("float32")


def trained(devices, variables="auto"):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([7, 3]), keras.layers.LSTM(4), keras.layers.Dense(2)])
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_sum((model(x) - y) ** 2, axis=1),
        keras.optimizers.SGD(0.1, momentum=0.9),
        devices=devices,
        variables=variables,
    )
    trainer.fit((X, Y), batch_size=11, steps=6, progress=False)
    return trainer, model.get_weights()


@pytest.mark.parametrize("variables", ["partitioned", *long("shared")])
@pytest.mark.long
def test_an_lstm_equals_one_device(variables):
    _, alone = trained(1)
    _, found = trained(3, variables)
    for one, other in zip(alone, found, strict=True):
        # Sums of float32 in another order, over 6 steps of numbers around 1.
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_loop_reads_from_its_own_device():
    trainer, _ = trained(3, "shared")
    first, second, third = trainer._engine.residence._stand_ins
    # The first device has the variables themselves; the dense layer is in no loop.
    assert not first
    assert sorted(v.name for v in second.values()) == sorted(v.name for v in third.values())
    assert all("CPU:1" in v.device for v in second.values())
    assert len(second) in (2, 3)


def test_what_a_loop_reads_is_known():
    inside, outside = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function(autograph=False)
    def fn(x):
        return outside * tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * inside), [0, x])[1]

    found = captures(fn.get_concrete_function(tf.constant(1.0)))
    looped = {capture.variable.ref(): capture.looped for capture in found if capture.variable is not None}
    assert looped == {inside.ref(): True, outside.ref(): False}
