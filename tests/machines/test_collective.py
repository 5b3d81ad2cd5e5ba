"""What travels between machines and how it is packed; real machines are in `test_peers.py`."""

import pytest
import tensorflow as tf

from colonnade.run.machines.collective import Collective, can_travel, carried, packed


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64])
def test_numbers_that_tensorflow_sums_travel_as_they_are(dtype):
    assert carried(tf.zeros([2], dtype)).dtype == dtype


@pytest.mark.parametrize(
    ("values", "dtype"), [([0, 255], tf.uint8), ([-128, 127], tf.int8), ([2**32 - 1], tf.uint32)]
)
def test_others_travel_as_numbers_that_hold_all_their_values(values, dtype):
    there = carried(tf.constant(values, dtype))
    assert there.dtype == tf.int64
    assert tf.cast(there, dtype).numpy().tolist() == values


def test_truth_travels_as_a_number():
    assert tf.cast(carried(tf.constant([True, False])), tf.bool).numpy().tolist() == [True, False]


def test_what_has_no_sum_does_not_travel():
    assert not can_travel(tf.string)
    assert not can_travel(tf.complex64)
    assert can_travel(tf.bool)


def test_tensors_of_one_dtype_go_together():
    tensors = [tf.zeros(2), tf.zeros(2, tf.int64), tf.zeros([]), tf.zeros(3, tf.int64)]
    assert packed(tensors) == {tf.float32: [0, 2], tf.int64: [1, 3]}


def test_every_collective_has_keys_of_its_own():
    """A sum takes one, rows take one for every power of two."""
    collective = Collective(2)
    with tf.Graph().as_default() as graph:
        token = tf.compat.v1.placeholder(tf.resource, [])
        collective._token = type("Token", (), {"handle": token})()
        collective.sum(tf.zeros([3]))
        collective.rows(tf.zeros([3, 2]), tf.constant([3, 1]))
        collective.sum(tf.zeros([3]))
        sums = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
        keys = [int(tf.get_static_value(op.inputs[3])) for op in sums]
    assert keys == [1, 35]
