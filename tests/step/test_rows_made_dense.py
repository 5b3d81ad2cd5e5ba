"""Updates of sparse gradients that are compiled from where the rows have become a table."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.step import xla
from colonnade.run.step.update import Update

IDS = np.random.default_rng(0).integers(0, 7, [12, 3])  # of 20 rows, many of them several times
# These make tables of the rows, and then move every row of every table.
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "decay and averages": lambda: keras.optimizers.AdamW(0.05, use_ema=True),
    "clipped by the norm of all": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.1),
    "amsgrad": lambda: keras.optimizers.Adam(0.05, amsgrad=True, clipvalue=0.1),
    "adamax": lambda: keras.optimizers.Adamax(0.05, clipnorm=0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.05),
    "lion": lambda: keras.optimizers.Lion(0.05),
}
# These write to rows of a variable, or read one before there is a table.
OTHERS = {
    "descent": lambda: keras.optimizers.SGD(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "nadam": lambda: keras.optimizers.Nadam(0.05),
    "accumulated": lambda: keras.optimizers.Adam(0.05, gradient_accumulation_steps=2),
}


def trained(monkeypatch, large, optimizer, sizes=(12,), **options):
    monkeypatch.setattr(xla, "LARGE", large)
    rng = np.random.default_rng(1)
    table, w = tf.Variable(rng.normal(size=[20, 4])), tf.Variable(rng.normal(size=[4, 2]))
    trainer = cn.Trainer(
        lambda ids: tf.reduce_mean((tf.reduce_mean(tf.gather(table, ids), 1) @ w - 1) ** 2, 1),
        optimizer,
        devices=3,
        **options,
    )
    losses = [float(trainer.train_on_batch(IDS[:size]).loss) for size in sizes * 3]
    return [v.numpy() for v in (table, w, *(v.value for v in optimizer.variables))], losses


@pytest.fixture
def compiled(monkeypatch):
    made, original = [], xla.compiled
    monkeypatch.setattr(
        "colonnade.run.step.update.compiled", lambda fn, *specs: made.append(fn) or original(fn, *specs)
    )
    return made


@pytest.mark.sampled(7)
@pytest.mark.parametrize("home", ["shared", "mirrored"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equal_to_updates_that_are_not_compiled(monkeypatch, compiled, name, home):
    """Rows that come twice are still squared one by one, and the number of rows may change."""
    options = {"variables": home, "sizes": (12, 7, 1)}
    plain = trained(monkeypatch, math.inf, OPTIMIZERS[name](), **options)
    assert not compiled
    fast = trained(monkeypatch, 0, OPTIMIZERS[name](), **options)
    assert compiled
    for found, expected in zip(fast[0], plain[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == np.float32 else 1e-11)
    np.testing.assert_allclose(fast[1], plain[1], rtol=1e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_left_as_they_are(monkeypatch, name):
    monkeypatch.setattr(xla, "LARGE", 0)
    assert not update_of(OTHERS[name]()).compiles


def test_only_what_is_added_up_before_is_compiled(monkeypatch):
    """XLA would compile the sum of rows anew for every number of them."""
    monkeypatch.setattr(xla, "LARGE", 0)
    update = update_of(keras.optimizers.Adam(0.1))
    assert update.compiles
    assert not update.sums


def test_small_tables_are_not_worth_it():
    assert not update_of(keras.optimizers.Adam(0.1)).compiles


def update_of(optimizer):
    table = tf.Variable(tf.ones([20, 4]))
    optimizer.build([table])
    spec = tf.IndexedSlicesSpec([20, 4], indices_dtype=tf.int32, dense_shape_dtype=tf.int32)
    return Update(optimizer, [table], [spec])
