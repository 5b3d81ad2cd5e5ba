"""`cn.memory` asks a trainer: of which function, with which optimizer; the estimate has tests of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.train import memory as module


@pytest.fixture
def asked(monkeypatch):
    """What a trainer was made of, and asked about."""
    seen = {}

    class Trainer:
        def __init__(self, loss, optimizer, **options):
            seen.update(loss=loss, optimizer=optimizer, **options)

        def memory(self, *batch):
            seen["batch"] = batch
            return "the estimate"

    monkeypatch.setattr(module, "Trainer", Trainer)
    return seen


def model(optimizer=None):
    net = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    if optimizer:
        net.compile(optimizer, "mse")
    return net


def test_a_function_is_estimated_as_it_is_trained(asked):
    def loss(x, y):
        return x - y

    adam, batch = keras.optimizers.Adam(), (tf.ones(6), tf.ones(6))
    assert cn.memory(loss, batch, optimizer=adam, devices=2, variables="mirrored") == "the estimate"
    assert asked == {"loss": loss, "optimizer": adam, "devices": 2, "variables": "mirrored", "batch": batch}


def test_a_batch_of_one_argument_needs_no_tuple(asked):
    batch = tf.ones(6)
    cn.memory(lambda x: x, batch)
    assert asked["batch"] == (batch,)


@pytest.mark.parametrize(
    ("given", "compiled", "kind"),
    [
        (None, None, keras.optimizers.SGD),  # which has no slots
        (None, keras.optimizers.Adam, keras.optimizers.Adam),
        (keras.optimizers.Lion, keras.optimizers.Adam, keras.optimizers.Lion),
    ],
)
def test_the_optimizer_is_the_one_given_or_that_of_the_model(asked, given, compiled, kind):
    cn.memory(model(compiled and compiled()), tf.ones([6, 4]), optimizer=given and given())
    assert type(asked["optimizer"]) is kind


def test_the_loss_of_a_model_is_the_mean_of_what_it_puts_out_in_training(asked):
    """Of each example, so that nothing is left out of the gradient; dropout draws, as it does in training."""
    net = model()
    cn.memory(net, tf.ones([6, 4]))
    losses = asked["loss"](tf.ones([6, 4]))
    assert losses.shape == [6]
    assert not np.allclose(losses, np.mean(net(tf.ones([6, 4]), training=False), axis=1))


def test_what_is_no_function_is_refused(asked):
    with pytest.raises(cn.InvalidArgument, match="fn=3: must be a loss function or a Keras model"):
        cn.memory(3, tf.ones([6, 4]))
    assert asked == {}
