"""Metrics that replicas would update by slices are updated once, by the whole batch."""

import keras
import pytest
import tensorflow as tf

from colonnade.run.model.metrics import DeferredMetrics

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
