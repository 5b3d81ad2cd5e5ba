"""Updates that XLA compiles are the optimizer's own."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.reason.simulator.staleness import race
from colonnade.run.step import xla
from colonnade.run.step.update import Update

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=[31, 6]), RNG.normal(size=[31, 1])
SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.7)
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(SCHEDULE, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.5),
    "average": lambda: keras.optimizers.AdamW(0.05, use_ema=True),
}


@pytest.fixture
def compilations(monkeypatch):
    """The functions that are compiled."""
    made = []
    original = xla.compiled

    def noted(fn, *specs):
        made.append(fn)
        return original(fn, *specs)

    monkeypatch.setattr(xla, "compiled", noted)
    monkeypatch.setattr("colonnade.run.step.update.compiled", noted)
    return made


def trained(monkeypatch, large, optimizer, sync=None, devices=3, loss=None, **options):
    monkeypatch.setattr(xla, "LARGE", large)
    w, b = tf.Variable(np.ones([6, 1])), tf.Variable([0.5], dtype=tf.float64)
    loss = loss or (lambda x, y: tf.squeeze((x @ w + b - y) ** 2, axis=1))
    trainer = cn.Trainer(lambda x, y: loss(x, y), optimizer, devices=devices, sync=sync, **options)
    history = trainer.fit(((X, Y) for _ in range(5)), progress=False)
    return [v.numpy() for v in (w, b, *(v.value for v in optimizer.variables))], history.losses


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_to_updates_that_are_not_compiled(monkeypatch, compilations, name):
    """Parameters, slots, counters and losses, to rounding in float64: XLA may round a * b + c once."""
    plain = trained(monkeypatch, math.inf, OPTIMIZERS[name]())
    assert not compilations
    fast = trained(monkeypatch, 0, OPTIMIZERS[name]())
    assert compilations
    for found, expected in zip(fast[0], plain[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-12)
    np.testing.assert_allclose(fast[1], plain[1], rtol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [{"penalty": lambda: tf.constant(0.0)}, {"devices": ["CPU:1"], "variables": "partitioned"}],
    ids=["penalty", "partitioned"],
)
@pytest.mark.long
def test_with_a_penalty_and_on_one_other_device(monkeypatch, compilations, options):
    plain = trained(monkeypatch, math.inf, OPTIMIZERS["momentum"](), **options)
    fast = trained(monkeypatch, 0, OPTIMIZERS["momentum"](), **options)
    assert compilations
    for found, expected in zip(fast[0], plain[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-12)


def test_asynchronous_updates_too(monkeypatch, compilations):
    """With their order fixed: the schedule and the counter that one sees go by global steps."""

    def sync():
        return cn.Asynchronous(order=race([1.0, 1.5, 1.0]))

    plain = trained(monkeypatch, math.inf, OPTIMIZERS["momentum"](), sync())
    assert not compilations
    fast = trained(monkeypatch, 0, OPTIMIZERS["momentum"](), sync())
    assert compilations
    assert 5 in [value for value in fast[0] if value.dtype.kind == "i"]
    for found, expected in zip(fast[0], plain[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-12)


@pytest.mark.long
def test_large_float32_clipped_by_the_norm_of_all(monkeypatch, compilations):
    """The norm is a sum in another order: of a million numbers, to a millionth."""
    monkeypatch.setattr(xla, "LARGE", 2**18)
    found = []
    for large in (math.inf, 2**18):
        monkeypatch.setattr(xla, "LARGE", large)
        w = tf.Variable(np.random.default_rng(1).normal(size=[1000, 1000]).astype("float32"))
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.1)
        trainer = cn.Trainer(lambda x, w=w: tf.reduce_mean(tf.tanh(x @ w), axis=1), optimizer, devices=2)
        for _ in range(3):
            trainer.train_on_batch(np.ones([4, 1000], "float32"))
        found.append(w.numpy())
    assert compilations
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


def test_half_precision_is_not_compiled(monkeypatch, compilations):
    monkeypatch.setattr(xla, "LARGE", 0)
    w = tf.Variable(tf.ones([6, 1], tf.bfloat16))
    trainer = cn.Trainer(
        lambda x: tf.squeeze(tf.cast(x, w.dtype) @ w, 1), keras.optimizers.SGD(0.1), devices=2
    )
    trainer.train_on_batch(X)
    assert not compilations


def test_replicas_with_other_gradients_are_added_up_before(monkeypatch, compilations):
    """A loss may have a sparse gradient for slices of some size: here of 3 rows, and not of 4."""
    monkeypatch.setattr(xla, "LARGE", 0)
    w, b = tf.Variable(np.ones([6, 1])), tf.Variable(np.ones([1]))

    def loss(x):
        return tf.squeeze(x @ w + (b if x.shape[0] == 4 else tf.gather(b, [0])), axis=1)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.7), devices=2)
    trainer.train_on_batch(X[:7])
    np.testing.assert_allclose(w.numpy(), 1 - 0.7 * X[:7].mean(axis=0)[:, None])
    np.testing.assert_allclose(b.numpy(), [0.3])


def test_what_is_not_plain_arithmetic_is_not_compiled(monkeypatch, compilations):
    class Printing(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return tf.py_function(lambda: np.float32(0.1), [], tf.float32)

        def get_config(self):
            return {}

    table = tf.Variable(np.ones([9, 1]))
    trained(monkeypatch, 0, keras.optimizers.SGD(Printing()))
    rows = tf.constant([3] * 31)
    trained(
        monkeypatch,
        0,
        keras.optimizers.SGD(0.1),
        loss=lambda x, y: tf.squeeze(tf.gather(table, rows[: tf.shape(x)[0]]) - y, axis=1),
    )
    assert not compilations


def test_a_step_that_is_left_out_is_left_out(monkeypatch, compilations):
    monkeypatch.setattr(xla, "LARGE", 0)
    w = tf.Variable(np.ones([6, 1]))
    trainer = cn.Trainer(
        lambda x: tf.squeeze(x @ w, axis=1), keras.optimizers.Adam(0.1), devices=2, on_nan="skip"
    )
    trainer.train_on_batch(X)
    assert compilations
    before = w.numpy()
    bad = X.copy()
    bad[-1] = np.nan
    assert trainer.train_on_batch(bad).skipped
    np.testing.assert_array_equal(w.numpy(), before)


def test_every_mirrored_copy_has_a_compiled_update_of_its_own(monkeypatch, compilations):
    """As on cards: what one device makes of it, by one call on each device in place of many ops."""
    calls = []
    original = Update.at_once

    def noted(self, rows, handles, device, copy=0):
        calls.append((device, copy))
        return original(self, rows, handles, device, copy)

    monkeypatch.setattr(Update, "at_once", noted)
    one = trained(monkeypatch, math.inf, OPTIMIZERS["average"](), devices=1)
    assert not calls
    several = trained(monkeypatch, 0, OPTIMIZERS["average"](), variables="mirrored")
    assert set(calls) == {(f"/device:CPU:{i}", i) for i in range(3)}
    assert len(compilations) == 1  # by XLA once for each device
    for found, expected in zip(several[0], one[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-11)


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_compiled_copy_waits_for_the_guard(monkeypatch, on_nan):
    """Weight decay needs no gradient: it must not be there when the update is left out."""
    monkeypatch.setattr(xla, "LARGE", 0)
    w = tf.Variable(np.ones([6, 1]))
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.5)
    trainer = cn.Trainer(
        lambda x: tf.squeeze(x @ w, 1), optimizer, devices=3, variables="mirrored", on_nan=on_nan
    )
    trainer.train_on_batch(X)
    before = w.numpy()
    bad = X.copy()
    bad[20] = np.nan
    if on_nan == "stop":
        with pytest.raises(cn.NotFinite, match="CPU:1"):
            trainer.train_on_batch(bad)
    else:
        trainer.train_on_batch(bad)
    assert all(np.array_equal(own[0], before) for own in trainer.replicas())
