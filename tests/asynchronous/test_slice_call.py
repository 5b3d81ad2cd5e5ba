"""A device hands over one vector and a flat list for a slice; each field must come back as it went in."""

import numpy as np
import tensorflow as tf

from colonnade.run.asynchronous.slice_call import SliceCall, SliceReport, SliceResults
from colonnade.run.trace.raw_call import Call


def packed(num_metrics, dtype=tf.float32):
    return SliceReport.packed(
        amount=tf.constant(3),
        loss=tf.constant(1.5),
        metrics=[tf.constant(10.0 + i, tf.float64) for i in range(num_metrics)],
        own_loss=tf.constant(1.25),
        health=[tf.constant([0.5, 0.25]), tf.zeros([0])],
        dtype=dtype,
    )


def test_every_field_of_a_report_is_read_as_it_was_packed():
    for num_metrics in (0, 2):
        report = SliceReport.read(packed(num_metrics).numpy(), num_metrics)
        assert (report.amount, report.loss, report.own_loss) == (3, 1.5, 1.25)
        np.testing.assert_array_equal(report.means, [1.5, 10, 11][: 1 + num_metrics])
        np.testing.assert_array_equal(report.watched, [1.25, 0.5, 0.25])


def test_a_report_keeps_the_precision_of_the_loss():
    assert SliceReport.read(packed(1, tf.float64).numpy(), 1).means.dtype == np.float64


def test_the_results_of_a_call_are_told_apart():
    state = tf.Variable(7.0)

    def compute(x):
        before = state.read_value()
        state.assign_add(x)
        return SliceResults.packed(
            report=packed(1),
            turned=9 * x,
            states=[before],
            gradient=[2 * x, 3 * x],
            outputs=[4 * x, 5 * x],
        )

    call = Call(compute, [tf.TensorSpec([], tf.float32)], "/device:CPU:0")
    piece = SliceCall(call, [state], num_gradients=2, num_metrics=1, outputs={"a": 0, "b": 0}, push=call)
    results = piece([tf.constant(1.0)])
    assert (results.report.own_loss, float(results.turned)) == (1.25, 9)
    assert [float(part) for part in results.gradient] == [2, 3]
    assert tf.nest.map_structure(float, piece.outputs_of(results)) == {"a": 4, "b": 5}
    assert float(state) == 8
    piece.undo(results)
    assert float(state) == 7
