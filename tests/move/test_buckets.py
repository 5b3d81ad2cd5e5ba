"""Buckets hold all numbers once, in equal parts, and need only their own tensors."""

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from colonnade.run.move.buckets import Buckets, by_dtype, fits

SHAPES = st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=6).map(tuple)


@given(SHAPES, st.integers(1, 9))
def test_all_numbers_are_in_buckets_of_equal_size(shapes, count):
    pieces = Buckets(shapes, count).pieces
    sizes = [sum(piece.size for piece in bucket) for bucket in pieces]
    numbers = [int(np.prod(shape)) for shape in shapes]
    assert sum(sizes) == sum(numbers)
    assert max(sizes) - min(sizes) <= 1
    assert len(pieces) == min(count, sum(numbers))
    order = [piece.tensor for bucket in pieces for piece in bucket]
    assert order == sorted(order)
    held = [sum(p.size for b in pieces for p in b if p.tensor == i) for i in range(len(shapes))]
    assert held == numbers


def test_what_is_unpacked_is_what_was_packed():
    tensors = [tf.reshape(tf.range(n), shape) for n, shape in ((6, [2, 3]), (1, []), (7, [7]), (4, [1, 4]))]
    buckets = Buckets(tuple(tuple(t.shape) for t in tensors), 5)
    vectors = buckets.packed(tensors)
    assert [v.shape[0] for v in vectors] == [3, 4, 3, 4, 4]
    for back, tensor in zip(buckets.unpacked(vectors), tensors, strict=True):
        assert back.shape == tensor.shape
        assert np.array_equal(back, tensor)


def test_a_bucket_needs_nothing_but_its_own_tensors():
    with tf.Graph().as_default():
        tensors = [tf.compat.v1.placeholder(tf.float32, [4], name=f"g{i}") for i in range(4)]
        vectors = Buckets(((4,),) * 4, 2).packed(tensors)
        needs = [_placeholders(vector.op) for vector in vectors]
    assert needs == [{"g0", "g1"}, {"g2", "g3"}]


def _placeholders(op):
    if op.type == "Placeholder":
        return {op.name}
    return set().union(*(_placeholders(tensor.op) for tensor in op.inputs)) if op.inputs else set()


def test_which_gradients_can_be_cut():
    dense, empty = tf.ones([2]), tf.ones([0])
    sparse = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]))
    assert fits([dense, dense])
    assert not any(
        fits(column)
        for column in ([dense, None], [dense, sparse], [empty, empty], [dense, tf.ones([2], tf.float64)])
    )


def test_tensors_of_one_dtype_are_together_as_they_are_made_or_the_last_first():
    tensors = [tf.ones([]), tf.ones([], tf.float64), tf.ones([]), tf.ones([])]
    assert by_dtype(tensors, [0, 1, 2]) == [[2, 0], [1]]
    assert by_dtype(tensors, [0, 1, 2, 3], made=[5, 7, 9, 6]) == [[0, 3, 2], [1]]
