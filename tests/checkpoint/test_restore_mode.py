"""Going on in another mode than was saved."""

import itertools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn

RNG = np.random.default_rng(0)
RATE = 2**-4  # which float32 holds exactly
X = RNG.normal(size=(48, 4))
Y = X @ RNG.normal(size=(4, 1)) + 0.1
pytestmark = pytest.mark.filterwarnings("ignore:Saved ", "ignore:The step was saved in another mode")
SYNC = {
    "synchronous": lambda: cn.Synchronous(),
    "measured": lambda: cn.Synchronous(shares="measured"),
    "asynchronous": lambda: cn.Asynchronous(),
    "local": lambda: cn.LocalSGD(1),
    "outer": lambda: cn.LocalSGD(1, outer=keras.optimizers.SGD(1.0, name="outer")),
    "elastic": lambda: cn.Elastic(1, 0.2),
}


def trained(mode, steps, folder=None, *, devices=1, optimizer="Adam"):
    keras.backend.clear_session()
    w = tf.Variable(np.zeros((4, 1)), name="w")
    made = getattr(keras.optimizers, optimizer)(RATE, name="optimizer")
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((x @ w - y) ** 2, 1), made, devices=devices, sync=SYNC[mode]()
    )
    checkpoint = cn.Checkpoint(folder, every=100) if folder else None
    history = trainer.fit((X, Y), batch_size=8, steps=steps, checkpoint=checkpoint, progress=False)
    assert int(trainer.optimizer.iterations) == trainer.step == steps
    return w.numpy(), history.resumed


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("asynchronous", "synchronous"),
        ("synchronous", "asynchronous"),
        ("local", "outer"),
        *long(("asynchronous", "local"), ("outer", "asynchronous"), ("measured", "asynchronous")),
        *long(
            ("local", "synchronous"),
            ("synchronous", "outer"),
            ("outer", "local"),
            ("synchronous", "measured"),
        ),
    ],
)
def test_on_one_device_where_all_modes_are_the_same_a_change_of_mode_changes_nothing(tmp_path, first, second):
    """With Adam, which counts updates: the modes that count them apart take over the count."""
    wanted, _ = trained("synchronous", 9)
    trained(first, 5, tmp_path)
    found, resumed = trained(second, 9, tmp_path)
    assert resumed == 5
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "devices"),
    [
        ("asynchronous", "synchronous", 3),
        *long(*((*pair, 2 + i % 2) for i, pair in enumerate(itertools.permutations(SYNC, 2)))),
    ],
)
def test_every_mode_goes_on_with_what_another_saved(tmp_path, first, second, devices):
    saved, _ = trained(first, 6, tmp_path, devices=2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        taken, resumed = trained(second, 6, tmp_path, devices=devices)
    assert resumed == 6
    assert np.array_equal(taken, saved)
    # What a change of mode loses is said.
    of_updates = "asynchronous" in (first, second)
    count = re.compile("pushes/optimizer/iteration (begins anew|is left out)")
    assert any(count.search(str(one.message)) for one in said) == of_updates
    loss = np.mean((X @ saved - Y) ** 2)
    assert np.mean((X @ trained(second, 40, tmp_path, devices=devices)[0] - Y) ** 2) < loss


@pytest.mark.parametrize(
    ("first", "second"), [("synchronous", "asynchronous"), *long(("local", "synchronous"))]
)
def test_a_scale_that_the_loss_reads_goes_on_in_another_mode(tmp_path, first, second):
    """It is the optimizer's, in whichever mode, and no constant of the loss."""

    def steps_of(mode, steps, folder):
        keras.backend.clear_session()
        w = tf.Variable(np.zeros((4, 1)), name="w")
        inner = keras.optimizers.Adam(RATE, name="inner")
        made = keras.optimizers.LossScaleOptimizer(inner, 8.0, dynamic_growth_steps=2, name="scaled")
        trainer = cn.Trainer(lambda x, y: tf.squeeze((x @ w - y) ** 2, 1), made, devices=1, sync=SYNC[mode]())
        checkpoint = cn.Checkpoint(folder, every=100) if folder else None
        trainer.fit((X, Y), batch_size=8, steps=steps, checkpoint=checkpoint, progress=False)
        return [w.numpy(), float(made.dynamic_scale)]

    unbroken = steps_of(second, 6, None)
    steps_of(first, 3, tmp_path)
    w, scale = steps_of(second, 6, tmp_path)
    np.testing.assert_allclose(w, unbroken[0], rtol=0, atol=1e-12)
    assert scale == unbroken[1] == 64.0


def test_after_a_change_the_steps_are_those_of_the_new_mode(tmp_path):
    """Plain SGD from the saved weights, in NumPy."""
    w, _ = trained("asynchronous", 5, tmp_path, devices=2, optimizer="SGD")
    for step in (5, 6, 7):
        x, y = (a[step % 6 * 8 :][:8] for a in (X, Y))
        w = w - RATE * 2 * x.T @ (x @ w - y) / 8
    found, _ = trained("synchronous", 8, tmp_path, devices=2, optimizer="SGD")
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)
