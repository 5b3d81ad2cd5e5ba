"""How far two results are apart."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.parallel.gap import dense, gap, largest, nudged

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("expected", "other", "distance"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([3 + 4j], [0j], 5.0),
        ([1, 2], [4, 2], 3.0),
        ([NAN, INF], [NAN, INF], 0.0),
        ([NAN], [1.0], INF),
        ([INF], [-INF], INF),
        ([1.0], [1.0, 1.0], INF),
        ([b"a"], [b"a"], 0.0),
        ([b"a"], [b"b"], INF),
        ([True], [False], INF),
        ([], [], 0.0),
    ],
)
def test_the_largest_difference(expected, other, distance):
    assert gap(np.array(expected), np.array(other)) == distance


def test_only_one_has_the_value():
    assert gap(None, np.zeros(1)) == gap(np.zeros(1), None) == INF


def test_differences_of_small_floats_are_taken_in_double_precision():
    assert gap(np.array([60000.0], "float16"), np.array([-60000.0], "float16")) > 1e5


def test_all_kinds_of_tensors_are_compared_as_arrays():
    slices = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([2, 2]), tf.constant([3, 1]))
    assert dense(slices).tolist() == [[0.0], [0.0], [3.0]]
    assert dense(tf.ragged.constant([[1], [2, 3]])).tolist() == [[1, 0], [2, 3]]
    assert dense(tf.sparse.from_dense([[0, 5]])).tolist() == [[0, 5]]
    assert dense(tf.constant([1.5], tf.bfloat16)).dtype == np.float32


def test_the_largest_number_that_is_one():
    assert largest(np.array([1.0, -3.0, INF, NAN])) == 3.0
    assert largest(np.array([NAN])) == largest(np.array([])) == largest(np.array([7])) == 0.0


def test_nudged_floats_are_about_a_step_away():
    values = np.linspace(1.0, 9.0, 50).astype("float32")
    moved = nudged(values, 1e-3, np.random.default_rng(0)).numpy()
    assert moved.dtype == np.float32
    np.testing.assert_allclose(np.abs(moved - values), 1e-3 * values, rtol=1e-2)
    assert set(np.sign(moved - values)) == {-1.0, 1.0}
