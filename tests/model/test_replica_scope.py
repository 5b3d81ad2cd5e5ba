"""What a replica does where a step applies gradients and updates metrics: two slices against the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.errors import InvalidArgument
from colonnade.run.model.replica_scope import ReplicaScope
from colonnade.run.move.reduce import star
from colonnade.run.trace.replica_context import remembered
from colonnade.run.trace.traced import trace
from colonnade.run.trace_cut.sync_cut import call_with_sums
from colonnade.run.variables.replica_copies import ReplicaCopies

DEVICES = ["/device:CPU:0", "/device:CPU:1"]
X = tf.constant([1.0, 2.0, 6.0])


def on_two(step, metrics=()):
    """The results of replicas with 2 and 1 of three examples; the first has the variables themselves."""

    def replica(x, positions):
        scope = ReplicaScope(x.shape[0], 3, positions)
        with remembered(), scope.entered(metrics):
            result = step(x)
        return result, [gradient for _, gradient in scope.gradients]

    replica = tf.autograph.experimental.do_not_convert(replica)
    slices = [(X[:2], tf.constant([0, 1])), (X[2:], tf.constant([2]))]
    traces = [trace(replica, *each) for each in slices]
    copies = ReplicaCopies(DEVICES)
    bound = [copies.bindings(i, traced) for i, traced in enumerate(traces)]
    found = call_with_sums(traces, DEVICES, slices, bound, star(2))
    return [traced.pack(leaves) for traced, leaves in zip(traces, found, strict=True)]


def test_gradients_are_added_by_size_before_they_are_applied_and_once():
    """Keras's optimizers add gradients up themselves, which must not happen again."""
    w = keras.Variable(5.0)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([w])

    def step(x):
        optimizer.apply([tf.reduce_mean(x)], [w])
        return tf.constant(0)

    found = on_two(step)
    for _, (gradient,) in found:
        assert float(gradient) == pytest.approx(3.0)
    assert float(w) == pytest.approx(5.0 - 3.0)
    optimizer.apply([tf.constant(1.0)], [w])  # is Keras's again
    assert float(w) == pytest.approx(1.0)


def test_rows_of_a_table_are_those_of_all_examples_in_their_order():
    table = keras.Variable(np.zeros([7, 1], "float32"))
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([table])

    def step(x):
        rows = tf.cast(x, tf.int64)
        optimizer.apply([tf.IndexedSlices(x[:, None], rows, tf.constant([7, 1]))], [table])
        return tf.constant(0)

    for _, (gradient,) in on_two(step):
        np.testing.assert_array_equal(gradient.indices, [1, 2, 6])
        # A slice's own gradient is that of a mean over it, so it counts by its size.
        np.testing.assert_allclose(gradient.values[:, 0], [1 * 2 / 3, 2 * 2 / 3, 6 / 3])


def test_rows_that_are_not_those_of_examples_are_refused():
    table = keras.Variable(np.zeros([7, 1], "float32"), name="positions")
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([table])

    def step(x):
        optimizer.apply([tf.IndexedSlices(tf.ones([3, 1]), tf.range(3), tf.constant([7, 1]))], [table])
        return tf.constant(0)

    with pytest.raises(InvalidArgument, match=r"positions.*has a sparse gradient"):
        on_two(step)


def test_metrics_are_given_what_the_whole_batch_gives():
    mean, squares = keras.metrics.Mean(), keras.metrics.MeanSquaredError()
    weighted = keras.metrics.Mean()

    def step(x):
        mean.update_state(tf.reduce_mean(x))  # one number: a mean over the slice
        squares.update_state(x, tf.zeros_like(x))  # one for each example
        weighted.update_state(tf.reduce_mean(x), sample_weight=tf.shape(x)[0])  # how many there are
        return tf.constant(0)

    on_two(step, [mean, squares, weighted])
    assert float(mean.result()) == pytest.approx(3.0)
    assert float(squares.result()) == pytest.approx((1 + 4 + 36) / 3)
    assert [float(v) for v in weighted.variables] == pytest.approx([3 * 3.0, 3])
    mean.update_state(1.0)  # is Keras's again


def test_a_metric_of_what_has_no_sum_is_refused():
    metric = keras.metrics.Mean()

    def step(x):
        metric.update_state(tf.constant(["a", "b", "c", "d"]))
        return tf.constant(0)

    with pytest.raises(InvalidArgument, match="of which the whole batch has no sum"):
        on_two(step, [metric])


def test_apply_in_a_branch_is_refused():
    w = keras.Variable(5.0)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([w])

    def step(x):
        def apply():
            optimizer.apply([tf.reduce_mean(x)], [w])
            return tf.constant(0)

        return tf.cond(x[0] > 0, apply, lambda: tf.constant(1))

    with pytest.raises(InvalidArgument, match=r"apply='sgd.*': is called inside a loop, a branch"):
        on_two(step)
