"""Gradients as engines handle them: dense, sparse, or none."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import (
    components,
    divided,
    divisor,
    plus,
    slice_specs,
    slices,
)

SPARSE = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([0, 2]), tf.constant([3, 1]))


def test_slices_come_behind_one_over_the_size_of_the_batch():
    batch = Arguments((tf.range(5.0),), {})
    parts = [part.components() for part in slices(batch, (3, 2))]
    assert [float(factor) for factor, _ in parts] == [0.2, 0.2]
    assert [rows.numpy().tolist() for _, rows in parts] == [[0.0, 1.0, 2.0], [3.0, 4.0]]
    assert [spec.components()[1].shape for spec in slice_specs(batch, (3, 2))] == [[3], [2]]


def test_a_gradient_over_a_weight():
    assert divided(None, 2.0) is None
    assert divided(tf.constant([2.0]), 2.0).numpy() == [1.0]
    halved = divided(SPARSE, tf.constant(2.0, tf.float64))
    assert (halved.values.numpy().ravel().tolist(), halved.indices.numpy().tolist()) == ([1.0, 2.0], [0, 2])
    assert [float(divisor(tf.constant(w))) for w in (0.0, 3.0)] == [1.0, 3.0]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_over_a_weight_that_is_none(half):
    """A hundred thousand is infinite as the one, and 99 840 as the other."""
    weight = tf.constant(100_001.0)
    values = divided(tf.constant([32_000.0, -7.0], half), weight)
    assert values.dtype == half
    np.testing.assert_array_equal(values, tf.cast(tf.constant([32_000.0, -7.0]) / weight, half))


def test_a_sum_of_two_of_which_one_may_be_missing():
    assert plus(None, None) is None
    assert plus(None, SPARSE) is SPARSE
    np.testing.assert_array_equal(plus(SPARSE, tf.ones([3, 1])), [[3.0], [1.0], [5.0]])
    both = plus(SPARSE, SPARSE)  # as a tape adds them up: an optimizer takes each row by itself
    assert both.indices.numpy().tolist() == [0, 2, 0, 2]
    np.testing.assert_array_equal(both.values, [[2.0], [4.0], [2.0], [4.0]])


def test_the_plain_tensors_of_those_that_there_are():
    assert len(components([None, tf.ones([2]), SPARSE])) == 4
