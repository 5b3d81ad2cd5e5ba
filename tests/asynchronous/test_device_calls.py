"""A device computes the gradient of its own slice's mean, at the parameters that it read."""

import keras
import numpy as np
import tensorflow as tf

from colonnade.run.asynchronous.device_calls import DeviceCalls
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import slice_specs
from colonnade.run.engine.guard import Guard
from colonnade.run.engine.protocols import Settings
from colonnade.run.engine.traces import Traces

DEVICES = ("/device:CPU:0", "/device:CPU:1")


def test_a_slice_is_computed_at_what_was_read_and_not_at_what_is_there():
    w = tf.Variable([[1.0], [2.0]], dtype=tf.float64)

    def loss(x):
        return tf.squeeze(x @ w, 1) ** 2, {"square": tf.reduce_sum(x**2, axis=1)}

    settings = Settings(loss, keras.optimizers.SGD(1.0), DEVICES, "shared")
    traces = Traces(settings, turning=True)
    x = np.random.default_rng(0).normal(size=[5, 2])
    batch = Arguments((tf.constant(x),), {})
    traces.prepare(batch, (3, 2), lambda _: (), lambda *_: None)
    traced = traces.objective(slice_specs(batch, (3, 2))[0], 0, 2)
    calls = DeviceCalls(traces, Guard(settings, traces), traced, DEVICES, damping=False)
    read = calls.read_parameters()
    w.assign([[9.0], [9.0]])  # another device was quicker
    slices = calls.cut(batch, (3, 2))(*batch.components())
    for i, rows in enumerate((x[:3], x[3:])):
        np.testing.assert_array_equal(slices[i], rows)
        results = calls.slice_call(i, len(rows), batch)([*read, slices[i]])
        error = rows @ [[1.0], [2.0]]
        np.testing.assert_allclose(results.gradient[0], 2 * rows.T @ error / len(rows), rtol=1e-14)
        assert results.report.amount == len(rows)
        np.testing.assert_allclose(results.report.means, [(error**2).mean(), (rows**2).sum(axis=1).mean()])
