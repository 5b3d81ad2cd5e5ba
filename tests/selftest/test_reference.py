"""The other side of the comparisons: a training by hand in NumPy, and how much may differ."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.selftest import reference
from colonnade.run.selftest.reference import Training

RNG = np.random.default_rng(0)
BATCHES = [(RNG.normal(size=(rows, 3)).astype("float32"),) for rows in (7, 4)]
RATE = 0.25


@pytest.mark.parametrize("slices", [1, 3])
def test_a_training_is_the_one_by_hand(slices):
    """The gradient of the mean of (x @ w)**2, as SGD takes it; also where slices are of different sizes."""
    w = tf.Variable(np.ones((3, 1), "float32"))
    trained = reference.train(
        lambda x: tf.squeeze(x @ w, 1) ** 2,
        keras.optimizers.SGD(RATE),
        [w],
        BATCHES,
        device="/device:CPU:1",
        slices=slices,
    )
    by_hand, losses = np.ones((3, 1)), []
    for (x,) in BATCHES:
        losses.append(np.mean((x @ by_hand) ** 2))
        by_hand = by_hand - RATE * 2 * x.T @ (x @ by_hand) / len(x)
    np.testing.assert_array_equal(trained.start[0], np.ones((3, 1)))
    np.testing.assert_allclose(trained.end[0], by_hand, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trained.losses, losses, rtol=1e-5)


def test_permuted_batches_hold_the_same_examples_in_another_order():
    for (before,), (after,) in zip(BATCHES, reference.permuted(BATCHES), strict=True):
        assert not np.array_equal(before, after)
        assert sorted(map(tuple, before)) == sorted(map(tuple, after))


def moved(by, loss=1.0):
    return Training([np.zeros(4)], [np.asarray(by, "float64")], np.array([loss]))


ONE = moved([1.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("again", "seen", "closed"),
    [
        (ONE, ONE, True),
        (ONE, moved([1.0, 1.0, 1.0, 1.001]), False),  # nothing rounds so on one device
        (moved([1.0, 1.0, 1.0, 1.0003]), moved([1.0, 1.0, 1.0, 1.001]), True),  # here it does
        (moved([1.0, 1.0, 1.0, 1.5]), moved([1.0, 1.0, 1.0, 1.5]), False),  # that is no rounding
        (ONE, moved([1.0, 1.0, 1.0, float("nan")]), False),
        (ONE, moved([1.0, 1.0, 1.0, 1.0], loss=1.001), False),
    ],
)
def test_what_one_device_does_to_itself_may_differ_and_no_more(again, seen, closed):
    assert reference.gap(ONE, again, seen).closed == closed


def test_the_worst_difference_is_named():
    assert "variable 0" in str(reference.gap(ONE, ONE, moved([1.0, 2.0, 1.0, 1.0])))
    values = [np.ones(2), np.ones(2)]
    other = [np.ones(2), np.array([1.0, 1.5])]
    gap = reference.gap_of_values(["outputs", "gradients"], values, values, other)
    assert not gap.closed
    assert str(gap).startswith("largest difference 5.0e-01, allowed")
    assert "(gradients)" in str(gap)
