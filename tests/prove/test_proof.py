"""A batch as a whole against its slices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.prove.proof import InSlices
from colonnade.run.step.objective import Objective, Weighted
from colonnade.run.trace.keras_owner import not_frozen

X = np.random.default_rng(0).normal(size=(11, 3)).astype("float32")
IDS = np.array([0, 1, 1, 4, 2, 0, 3, 3, 3, 1, 0])
W, TABLE = tf.Variable(tf.ones([3, 1])), tf.Variable(tf.random.stateless_normal([5, 3], (1, 2)))
COUNT = tf.Variable(0.0, trainable=False)


def squares(x, ids):
    return tf.reduce_sum((x @ W + tf.gather(TABLE, ids) @ W - 1) ** 2, axis=1)


def in_slices(loss, *batch, counts=(4, 4, 3)):
    def trace(part):
        return Objective(loss, part, keras.optimizers.SGD().scale_loss, None, not_frozen)

    return InSlices.traced(trace, counts, Arguments(batch, {}), "/device:CPU:0")


def test_losses_per_example_are_equal_and_tables_are_compared_in_the_rows_that_were_read():
    look = in_slices(squares, X, IDS)
    assert look.look.unequal == []
    assert [row.leaf for row in look.look.rows] == [
        "loss",
        "gradient of Variable:0",
        "gradient of Variable:0 #2",
        "squared rows of Variable:0",
    ]
    assert sorted(v.shape for k, v in look.look.one.items() if k != "loss") == [(3, 1), (5, 3), (5, 3)]
    assert max(row.difference for row in look.look.rows) < 1e-5
    assert not look.look.random
    assert look.look.silent


def test_what_another_scale_of_the_loss_shows_is_rounding_in_squares_of_rows_too():
    look = in_slices(squares, X, IDS).look
    for leaf, value in look.scaled(0.5).items():
        np.testing.assert_allclose(value, look.one[leaf], rtol=1e-5, err_msg=leaf)


def test_weighted_losses_are_divided_by_all_weights():
    def loss(x, ids):
        return Weighted(squares(x, ids), tf.cast(ids, tf.float32)), {"size": squares(x, ids)}

    look = in_slices(loss, X, IDS)
    assert look.look.unequal == []
    assert "metric size" in look.look.one


@pytest.mark.parametrize(
    ("loss", "summed"),
    [
        (lambda x, ids: tf.reduce_sum(squares(x, ids)), True),
        (lambda x, ids: tf.sqrt(tf.reduce_mean(squares(x, ids))), False),
        (lambda x, ids: squares(x - tf.reduce_mean(x, axis=0), ids), False),
    ],
)
def test_what_is_no_mean_over_examples_differs(loss, summed):
    look = in_slices(loss, X, IDS)
    assert look.look.unequal[0].leaf == "loss"
    assert look.summed == summed
    assert not look.look.random


def test_random_numbers_are_told_apart_and_states_are_put_back():
    seed = keras.random.SeedGenerator(1)

    def loss(x, ids):
        COUNT.assign_add(1.0)
        return squares(x, ids) * keras.random.uniform([x.shape[0]], seed=seed)

    before = seed.state.numpy()
    look = in_slices(loss, X, IDS)
    assert look.look.unequal
    assert look.look.random
    assert look.changes_states
    np.testing.assert_array_equal(seed.state.numpy(), before)
    assert float(COUNT) == 0.0


def test_a_difference_in_the_gradient_alone_is_found():
    @tf.custom_gradient
    def tampered(x):
        return tf.identity(x), lambda dy: dy * (1 + 1e-3 * x.shape[0])

    look = in_slices(lambda x, ids: tampered(squares(x, ids)), X, IDS)
    gradients = {"gradient of Variable:0", "gradient of Variable:0 #2"}
    assert {row.leaf for row in look.look.unequal} == {*gradients, "squared rows of Variable:0"}


def test_what_would_be_seen_twice_is_known():
    def loss(x, ids):
        tf.print("a batch")
        return squares(x, ids)

    assert not in_slices(loss, X, IDS).look.silent


def test_rows_that_come_once_on_one_device_and_twice_in_slices_differ():
    """As sums they are equal, and optimizers take them one by one."""

    def halved(x, ids):
        rows = tf.numpy_function(np.unique, [ids], tf.int64)
        rows.set_shape([None])
        places = tf.searchsorted(rows, ids)
        return tf.reduce_sum((x @ W + tf.gather(tf.gather(TABLE, rows), places) @ W - 1) ** 2, axis=1)

    look = in_slices(halved, X, IDS).look
    assert [row.leaf for row in look.unequal] == ["squared rows of Variable:0"]
