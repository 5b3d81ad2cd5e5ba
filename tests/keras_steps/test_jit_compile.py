"""Keras's `jit_compile=True` in `cn.fit`: XLA compiles what a replica computes, or says why it cannot."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.keras_steps import jit_compile
from colonnade.run.trace.traced import Traced

X = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def model_of(jit, layer=None):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(3, "tanh"), *([layer] if layer is not None else []), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([4]), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
    return model


def compiled_calls(monkeypatch):
    """How often what a replica computes was called as compiled, while graphs were made."""
    calls, called = [], Traced.on

    def noted(self, *args, **options):
        calls.append(options.get("compiled", False))
        return called(self, *args, **options)

    monkeypatch.setattr(Traced, "on", noted)
    return calls


def test_it_is_honoured_and_trains_the_same(monkeypatch):
    weights = {}
    for jit in (True, "auto"):
        calls = compiled_calls(monkeypatch)
        model = model_of(jit)
        cn.fit(model, X, Y, batch_size=6, epochs=2, devices=2, verbose=0, shuffle=False)
        weights[jit] = model.get_weights()
        assert any(calls) == (jit is True)
    for one, other in zip(*weights.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)  # float32: XLA rounds otherwise


class Found(keras.layers.Layer):
    def call(self, x):
        return x + tf.ensure_shape(tf.numpy_function(np.sin, [x], x.dtype), x.shape)

    def compute_output_shape(self, shape):
        return shape


def test_what_xla_cannot_compile_is_named():
    with pytest.raises(cn.errors.InvalidArgument, match=r"jit_compile=True: .*PyFunc") as told:
        cn.fit(model_of(True, Found()), X, Y, batch_size=6, devices=2, verbose=0, prove=False)
    assert "test_jit_compile.py" in str(told.value)


class OwnStep(keras.Model):
    def train_step(self, data):
        return super().train_step(data)


def test_what_does_not_go_with_it_is_told_at_once():
    own = OwnStep(inputs=(entry := keras.Input([4])), outputs=keras.layers.Dense(1)(entry))
    own.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(cn.errors.InvalidArgument, match=r"jit_compile=True: is for Keras's own train_step"):
        cn.fit(own, X, Y, devices=2, verbose=0)
    with pytest.raises(cn.errors.InvalidArgument, match=r"jit_compile=True: is for cn.Synchronous\(\) only"):
        cn.fit(model_of(True), X, Y, devices=2, sync=cn.LocalSGD(2), verbose=0)


def test_nothing_is_told_from_it_where_there_are_cards(monkeypatch):
    """There the default comes to True as well."""
    model = model_of(True)
    assert jit_compile.asks_for_xla(model)
    card = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [card])
    assert not jit_compile.asks_for_xla(model)
