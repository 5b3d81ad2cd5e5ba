"""Work on a device, its gradient, and what crosses from one device to another."""

import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.move.on_device import copies, on, total

DEVICES = ["/device:CPU:1", "/device:CPU:2", "/device:CPU:3"]


@pytest.mark.parametrize("wrap", [lambda fn: fn, tf.function])
def test_value_and_gradient(wrap):
    def run(x, w, ids):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = on("/device:CPU:2", lambda x, w, ids: tf.gather(x * w, ids), x, w, ids)
        return y, *tape.gradient(y, [x, w])

    y, dx, dw = wrap(run)(tf.constant([1.0, 2.0, 3.0]), tf.constant(5.0), tf.constant([2, 2, 0]))
    assert y.numpy().tolist() == [15.0, 15.0, 5.0]
    assert dx.numpy().tolist() == [5.0, 0.0, 10.0]
    assert float(dw) == 7.0


def test_forward_and_backward_run_there():
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = on("/device:CPU:3", lambda x: x @ tf.transpose(x), x)
        return tape.gradient(y, x)

    ops = cn.placement(run, tf.ones([3, 2])).ops
    products = {row.actual for row in ops if "MatMul" in row.op}
    assert products == {"/device:CPU:3"}


def test_gradients_of_copies_are_added():
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        each = [on(DEVICES[k], lambda c, k=k: k * c, copy) for k, copy in enumerate(copies(x, DEVICES))]
        loss = tf.add_n([tf.reduce_sum(value) for value in each])
    assert tape.gradient(loss, x).numpy().tolist() == [3.0, 3.0]
    assert copies(x, DEVICES[:1])[0] is x


def test_a_total_and_its_gradient():
    parts = [tf.constant([float(i)]) for i in (1, 20, 300)]
    with tf.GradientTape() as tape:
        tape.watch(parts)
        whole = total(parts, DEVICES)
    assert whole.numpy().tolist() == [321.0]
    assert whole.device.endswith("CPU:1")
    np.testing.assert_array_equal(tape.gradient(whole, parts), [[1.0]] * 3)
