"""What functions take of memory, measured in a process of its own."""

import keras
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.memory.dry_run import Function, Input, Job, dry_run

KIB = 1024


@pytest.mark.long
def test_what_a_function_and_its_update_take():
    """A product of 64 x 128 and 128 x 32 floats, and its gradient."""
    w = tf.Variable(tf.zeros([128, 32]))

    def step(x):
        with tf.GradientTape() as tape:
            y = tf.tanh(x @ w)
        return y, tape.gradient(y, w)

    concrete = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec([64, 128]))
    momentum = keras.optimizers.serialize(keras.optimizers.SGD(0.1, momentum=0.9))
    job = Job(
        (Function.of(concrete, ["x", "w"], ["y", "dw"]),),
        {"x": Input((64, 128), "float32"), "w": Input((128, 32), "float32", variable=True)},
        {"w": ("dw",)},
        momentum,
    )
    (seen,) = dry_run([job])
    assert seen.gradients == 16 * KIB
    assert 16 * KIB <= seen.slots < 17 * KIB  # the momentum, and some numbers
    (bytes_of,) = seen.functions
    # At its peak it holds the batch (32 KiB), the result (8 KiB) and the gradient, and little more than that.
    assert 56 * KIB <= bytes_of.peak - bytes_of.before <= 96 * KIB
    assert bytes_of.after - bytes_of.before >= 16 * KIB


@pytest.mark.long
def test_what_width_layers_compute_counts_where_they_compute_it():
    """A device holds its half of 2 MiB of activations, though the batch comes from another."""
    wide = cn.width.Dense(512, "tanh", gather=False, devices=[2, 3], use_bias=False)
    narrow = cn.width.Dense(1, split="rows", devices=[2, 3], use_bias=False)
    net = keras.Sequential([keras.Input([2]), wide, narrow])
    estimate = cn.memory(lambda x: tf.reduce_mean(net(x), axis=1), tf.ones([1024, 2]))
    caller, *homes = [device.activations / 2**20 for device in estimate.devices]
    assert caller < 0.5
    assert homes == pytest.approx([homes[0]] * 2, rel=0.01)  # the first also puts the sum together
    assert homes[0] > 1


SPARSE = [[0, 2], [1, 5], [3, 1002]]


@pytest.mark.long
def test_a_sparse_batch_is_rehearsed_with_its_own_entries():
    wide = [
        cn.width.SparseDense(16, "relu", split="rows", devices=4),
        cn.width.Dense(8, devices=[0]),
    ]
    net = keras.Sequential([keras.Input([1003], sparse=True), *wide])
    batch = tf.SparseTensor(SPARSE, [1.0, 2.0, 3.0], [4, 1003])
    estimate = cn.memory(lambda s: tf.reduce_mean(net(s), axis=1), batch)
    assert sum(d.parameters for d in estimate.devices) == 4 * net.count_params()
    assert [d.device[-5:] for d in estimate.devices] == ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]


@pytest.mark.long
def test_the_cause_of_a_failed_rehearsal_is_told():
    weight = tf.Variable([[1.0]])

    def loss(x):  # fails on zeros only
        with tf.control_dependencies([tf.debugging.assert_positive(x, "they must be positive")]):
            return tf.reduce_mean(x * weight, axis=1)

    with pytest.raises(cn.InvalidArgument, match="they must be positive"):
        cn.memory(loss, tf.ones([4, 1]))
