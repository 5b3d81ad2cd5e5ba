"""Metrics that replicas would update by slices are updated once, by the whole batch."""

import keras
import pytest
import tensorflow as tf

from colonnade.run.model.metrics import ROWS, DeferredMetrics, update

Y = tf.constant([[0.0], [1.0], [2.0], [5.0], [7.0]])
GUESS = tf.constant([[1.0], [1.0], [0.0], [5.0], [3.0]])
WEIGHTS = tf.constant([1.0, 2.0, 1.0, 0.0, 3.0])


def noted(deferred, update, counts):
    """What replicas return that call `update` with consecutive slices of so many rows."""
    slices, start = [], 0
    for count in counts:
        with deferred:
            update(slice(start, start + count))
        slices.append(deferred.values)
        start += count
    return slices


@pytest.mark.parametrize("counts", [(5,), (3, 2), (1, 1, 3)])
def test_what_slices_noted_is_what_the_batch_gives(counts):
    metric, alone = keras.metrics.MeanAbsoluteError(), keras.metrics.MeanAbsoluteError()
    deferred = DeferredMetrics([metric])
    slices = noted(deferred, lambda s: metric.update_state(Y[s], GUESS[s], WEIGHTS[s]), counts)
    assert float(metric.count) == 0  # nothing was updated yet
    deferred.make(slices, [tf.constant(count) for count in counts])
    alone.update_state(Y, GUESS, WEIGHTS)
    assert float(metric.result()) == pytest.approx(float(alone.result()))
    assert float(metric.count) == float(alone.count)


def test_a_mean_of_a_slice_counts_by_its_rows():
    metric = keras.metrics.Mean()
    deferred = DeferredMetrics([metric])
    slices = noted(deferred, lambda s: metric.update_state(tf.reduce_mean(Y[s])), (4, 1))
    deferred.make(slices, [tf.constant(4), tf.constant(1)])
    assert float(metric.result()) == pytest.approx(3.0)  # and not (2 + 7) / 2


def test_outside_the_scope_a_metric_is_updated_as_ever():
    metric = keras.metrics.Mean()
    with DeferredMetrics([metric]):
        metric.update_state(100.0)
    metric.update_state(3.0)
    assert float(metric.result()) == 3.0


def in_a_trace(metric, *calls, rows):
    """What a trace notes of calls with a tensor of so many rows."""

    @tf.function(autograph=False)
    def traced(x):
        with DeferredMetrics([metric], rows) as deferred:
            for call in calls:
                call(x)
        found.append(deferred.noted)

    found = []
    traced.get_concrete_function(tf.TensorSpec([rows, 2]))
    return found[-1]


def test_a_number_of_rows_is_that_of_the_batch_and_another_number_stays():
    """One that a shape has without asking is none to Keras, whose traces are for any number of rows."""
    metric = keras.metrics.Mean()
    calls = (
        lambda x: metric.update_state(1.0, sample_weight=keras.ops.shape(x)[0]),
        lambda x: metric.update_state(2.0, sample_weight=tf.constant(x.shape[0])),
        lambda x: metric.update_state(tf.constant(3.0), sample_weight=tf.constant(2)),
        lambda x: metric.update_state(4.0, sample_weight=x.shape[0]),
        lambda x: metric.update_state(2),
    )
    small, large = (in_a_trace(metric, *calls, rows=rows) for rows in (2, 4))
    assert small.leaves() == [1.0, ROWS, 2.0, 2, 3.0, 2, 4.0, None, 2]
    update([small, small], [[], []], [tf.constant(2)] * 2, lambda: large)
    assert [float(v) for v in metric.variables] == [1 * 4 + 2 * 4 + 3 * 2 + 4 + 2, 4 + 4 + 2 + 1 + 1]
    metric.reset_state()
    # Slices of different sizes tell it by themselves.
    update([small, in_a_trace(metric, *calls, rows=3)], [[], []], [tf.constant(2), tf.constant(3)])
    assert [float(v) for v in metric.variables] == [1 * 5 + 2 * 5 + 3 * 2 + 4 + 2, 5 + 5 + 2 + 1 + 1]
