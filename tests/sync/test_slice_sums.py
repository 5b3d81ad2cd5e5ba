"""What slices add up to; machines without a slice add nothing."""

import pytest
import tensorflow as tf

from colonnade.run.step.objective import Share
from colonnade.run.sync.slice_sums import SliceSums


class Healthy:
    def health(self, share):
        return share.health


def share(loss, weight=None, metric=1.0):
    weight = None if weight is None else tf.constant(weight)
    return Share(tf.constant(loss), weight, {"m": tf.constant(metric)}, None, [], tf.constant([loss, 0.0]))


def test_sums_and_a_row_for_each_slice():
    sums = SliceSums.of([share(0.2), share(0.3)], [2, 3], 5, Healthy())
    loss, metrics, weight = sums.means()
    assert float(loss) == pytest.approx(0.5)
    assert float(metrics["m"]) == 2.0
    assert weight is None
    assert sums.replicas.numpy() == pytest.approx([0.2 * 5 / 2, 0.3 * 5 / 3])
    assert sums.health.shape == (2, 2)


def test_weights_divide_the_sums():
    sums = SliceSums.of([share(2.0, 4.0), share(3.0, 0.0)], [1, 1], 2, Healthy())
    loss, metrics, weight = sums.means()
    assert float(loss) == pytest.approx(5.0 / 4.0)
    assert float(metrics["m"]) == pytest.approx(2.0 / 4.0)
    assert float(weight) == 4.0
    assert sums.replicas.numpy() == pytest.approx([0.5, 0.0])


def test_without_any_weight_the_means_are_0():
    loss, _, weight = SliceSums.of([share(0.0, 0.0)], [1], 1, Healthy()).means()
    assert (float(loss), float(weight)) == (0.0, 1.0)


def test_a_share_of_no_slice_has_no_row():
    sums = SliceSums.of([share(0.0)], [], 3, Healthy())
    assert sums.replicas.shape == (0,)
    assert sums.health.shape == (0, 2)
