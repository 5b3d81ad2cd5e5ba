"""Predictions that are put together, and losses that layers add."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.errors import InvalidArgument
from colonnade.run.model.whole_batch import (
    MEAN,
    SUM,
    AddedLosses,
    gathered,
    joined,
    masks_of,
    told_kinds,
    with_masks,
)
from colonnade.run.move.reduce import star
from colonnade.run.trace.traced import trace
from colonnade.run.trace_cut.sync_cut import call_with_sums


@pytest.mark.parametrize("dtype", [tf.float32, tf.int64, tf.bool])
def test_every_replica_gets_the_values_of_all_in_their_places(dtype):
    values = tf.cast([[1, 0], [0, 2], [3, 0]], dtype)

    def whole(mine, positions):
        return gathered(mine, positions, 3)

    slices = [(values[:2], tf.constant([0, 1])), (values[2:], tf.constant([2]))]
    traces = [trace(whole, *each) for each in slices]
    found = call_with_sums(traces, ["CPU:0", "CPU:1"], slices, [{}, {}], star(2))
    for (each,) in found:
        np.testing.assert_array_equal(each, values)


def test_what_is_no_dense_tensor_of_numbers_is_refused():
    with pytest.raises(InvalidArgument, match="must be numbers in a dense tensor"):
        gathered(tf.constant(["a"]), tf.constant([0]), 1)


def test_masks_are_found_and_put_on():
    masked, plain = tf.ones([2, 3]), tf.ones([2, 3])
    masked._keras_mask = tf.constant([[True, False, True]] * 2)
    masks = masks_of([plain, masked])
    assert list(masks) == ["1"]
    first, second = with_masks([tf.zeros([2, 3]), tf.zeros([2, 3])], masks)
    assert not hasattr(first, "_keras_mask")
    assert second._keras_mask is masked._keras_mask


def test_a_sum_over_a_slice_counts_as_in_the_sum_over_the_batch():
    """The mean over slices weighs each by its size, which a sum is multiplied by the inverse of."""
    layer = keras.layers.Dense(1, name="adds")
    added = AddedLosses({("adds", 0): SUM})
    with added.noted(rows=2, total=8):
        layer.add_loss(tf.constant(3.0))
        layer.add_loss(tf.constant([1.0, 2.0]))  # Keras adds these up
        layer.add_loss(tf.constant(5.0))
    assert [float(v) for v in layer.losses] == [12.0, 12.0, 5.0]
    assert [float(v) for v in added.values] == [3.0, 3.0, 5.0]
    assert added.kinds == {("adds", 0): SUM, ("adds", 1): SUM, ("adds", 2): MEAN}
    assert added.layers == [layer] * 3


def test_a_batch_and_its_slices_tell_a_sum_from_a_mean():
    slices = [[2.0, 2.0, 7.0], [4.0, 4.0, 7.0]]
    assert told_kinds([6.0, 3.1, 7.0], slices, [2, 2], 1e-6) == [SUM, MEAN, MEAN]


def test_outputs_of_slices_that_differ_in_width_are_told():
    one, other = tf.zeros([3, 3]), tf.zeros([2, 2])
    with pytest.raises(
        InvalidArgument, match=r"predict\(\) .*\n.*model=1: has other dims for each slice, \(3, 3\)"
    ):
        joined([[one, one], [one, other]], "predict()")
    assert joined([[one], [one]])[0].shape == (6, 3)
    assert joined([tf.zeros([3]), tf.zeros([2])]).shape == (5,)
