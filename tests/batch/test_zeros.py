"""Values that stand for a batch of which only shapes are known."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import skeleton, with_zeros, zeros_for


@pytest.mark.parametrize(
    "spec",
    [
        tf.TensorSpec([3, 2], tf.float16),
        tf.TensorSpec([3], tf.string),
        tf.TensorSpec([], tf.int64),
        tf.SparseTensorSpec([3, 9], tf.float64),
        tf.RaggedTensorSpec([3, None], tf.int32, 1, tf.int32),
        tf.RaggedTensorSpec([3, None, None, 2], tf.float32, 2),
    ],
)
def test_a_value_is_of_its_kind(spec):
    assert spec.is_compatible_with(zeros_for(spec))


def test_dims_that_are_not_known_are_one():
    assert zeros_for(tf.TensorSpec([None, 3, None])).shape == [1, 3, 1]


def test_every_row_has_an_entry():
    assert zeros_for(tf.SparseTensorSpec([3, 9])).indices.numpy()[:, 0].tolist() == [0, 1, 2]
    assert zeros_for(tf.RaggedTensorSpec([3, None])).row_lengths().numpy().tolist() == [1, 1, 1]


def test_what_is_no_spec_stays():
    arguments = Arguments((tf.TensorSpec([2, 3]), "mean", 4), {}, ["x", "how", "times"])
    assert [type(leaf.value) for leaf in with_zeros(arguments).leaves][1:] == [str, int]
    assert not np.any(with_zeros(arguments).leaves[0].value)


def test_where_entries_are_is_kept_and_what_they_are_is_not():
    sparse = tf.sparse.from_dense([[0.0, 5.0], [7.0, 0.0]])
    parts = skeleton(Arguments((tf.constant([[1, 2]]), sparse), {}))
    assert parts[0] == ((1, 2), None)
    (_, indices), (_, values), (_, shape) = parts[1:]
    assert (indices.tolist(), values, shape.tolist()) == ([[0, 1], [1, 0]], None, [2, 2])
