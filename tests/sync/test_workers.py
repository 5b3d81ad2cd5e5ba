"""Replicas as the workers of a synchronous step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.engine.protocols import Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.sync.workers import Replicas

DEVICES = ("/device:CPU:0", "/device:CPU:1")
X = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def replicas(mode):
    w = tf.Variable([1.0, 1.0], name="w")
    settings = Settings(lambda x: tf.linalg.matvec(x, w), keras.optimizers.SGD(1.0), DEVICES, mode)
    traces = Traces(settings)
    workers = Replicas(settings, traces)
    traces.prepare(Arguments((X,), {}), (2, 1), workers.refused, lambda *_: None)
    return w, workers


@pytest.mark.parametrize("mode", ["shared", "mirrored", "partitioned"])
def test_they_compute_slices_and_update_every_copy(mode):
    w, workers = replicas(mode)
    housed = workers.house()
    workers.bind(housed)

    @tf.function(autograph=False)
    def step():
        shares, calls = workers.compute(Arguments((X,), {}), (2, 1), housed, [None])
        sums = workers.reduced([share.gradients for share in shares], first=True)
        with tf.control_dependencies(calls):
            updates = workers.updated(workers.everywhere(sums), housed)
        with tf.control_dependencies(updates):
            return tf.add_n([share.loss for share in shares])

    assert float(step()) == pytest.approx(np.sum(X) / 3)
    housed.leave()
    for (own,) in [[w], *(housed.own(i, [w]) for i in range(2))]:
        np.testing.assert_allclose(own, 1 - np.mean(X, axis=0), rtol=1e-6)


def test_bytes_that_a_step_moves():
    """Two floats up from the second replica; back the parameters, or the gradient, as many again."""
    expected = {("/device:CPU:1", "/device:CPU:0"): 8.0, ("/device:CPU:0", "/device:CPU:1"): 8.0}
    assert replicas("shared")[1].links() == replicas("mirrored")[1].links() == expected


def test_who_had_what_is_not_finite():
    assert replicas("shared")[1].culprit(1, ["w:0"]) == "/device:CPU:1"
