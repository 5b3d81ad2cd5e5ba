import pytest
import tensorflow as tf
from fresh import fresh

import colonnade as cn
from colonnade.hardware.placement import PlacedOp, Placement


def test_actual_devices_forward_and_backward():
    w = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def f(x):
        with tf.GradientTape() as tape:
            with tf.device("/device:CPU:1"):
                y = tf.nn.elu(x @ w)
            loss = tf.reduce_sum(y)
        return loss, tape.gradient(loss, w)

    report = cn.placement(f, tf.ones([2, 4]))
    matmuls = [(row.phase, row.asked, row.actual) for row in report.ops if "MatMul" in row.op]
    assert ("forward", "/device:CPU:1", "/device:CPU:1") in matmuls
    # The trap this report exists for: the backward pass went to the default device.
    assert ("backward", "", "/device:CPU:0") in matmuls
    assert {row.op for row in report.variables} == {"ReadVariableOp"}
    assert {row.actual for row in report.variables} == {"/device:CPU:0"}
    assert "variable access" in str(report)


def test_ops_in_called_functions_and_loops_are_counted():
    @tf.function
    def inner(x):
        return tf.sin(x)

    @tf.function
    def outer(x):
        with tf.device("/device:CPU:2"):
            x = inner(x)
            for _ in tf.range(5):
                x = tf.cos(x)
        return x

    outer(tf.ones(3))  # a function that has run before is reported as well
    rows = {row.op: row for row in cn.placement(outer, tf.ones(3)).ops}
    assert (rows["Sin"].asked, rows["Sin"].actual, rows["Sin"].calls) == ("/device:CPU:2", "/device:CPU:2", 1)
    assert (rows["Cos"].asked, rows["Cos"].actual, rows["Cos"].calls) == ("/device:CPU:2", "/device:CPU:2", 5)


def on_a_missing_card(x):
    with tf.device("/device:GPU:0"):
        return tf.sin(x)


def test_soft_placement_reports_every_move():
    report = cn.placement(on_a_missing_card, tf.ones(3))
    (row,) = report.moved
    assert (row.op, row.asked, row.actual) == ("Sin", "/device:GPU:0", "/device:CPU:0")
    assert "Sin was asked for on GPU:0 and ran on CPU:0" in str(report)


def test_without_soft_placement_the_error_names_op_and_device():
    cn.setup(soft_placement=False)
    try:
        with pytest.raises(cn.PlacementError, match=r"op \w*Sin is asked for on /device:GPU:0"):
            cn.placement(on_a_missing_card, tf.ones(3))
    finally:
        cn.setup(soft_placement=True)


def test_other_errors_of_the_function_stay_what_they_are():
    def bad(x):
        return tf.linalg.inv(x)

    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        cn.placement(bad, tf.zeros([2, 2]))


@pytest.mark.long
def test_placement_starts_from_a_fresh_process():
    assert "CPU:0" in fresh("print(cn.placement(lambda x: x + 1.0, tf.ones(2)))")


def test_in_a_notebook():
    report = cn.placement(lambda x: tf.tanh(x) + 1.0, tf.ones([3]))
    html = report._repr_html_()
    assert "Tanh" in html
    assert f"{len(report.ops) + len(report.variables)} ops and accesses to variables" in html
    assert "<details>" in html


def test_a_notebook_shows_a_part_of_many_ops():
    """And says how much it leaves out."""
    op = PlacedOp("op", "Tanh", "/device:GPU:0", "/device:CPU:0", "forward", 1)
    html = Placement((op,) * 10_000, ())._repr_html_()
    assert html.count("Tanh was asked for on GPU:0 and ran on CPU:0.") == 12
    assert "So did 9,988 more ops: `moved` lists them." in html
    assert "and 9,800 more" in html
    assert len(html) < 200_000
