"""A call by TensorFlow's own op: placed as a call of a tf.function is, and on a device that was named."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.raw_call import Call, placement_options, raw_call
from colonnade.run.trace.traced import trace

HERE, THERE = "/device:CPU:0", "/device:CPU:1"
NUMBER = [tf.TensorSpec([])]


def made(kind):
    """A function that hands the value of a variable on another device on to a function inside."""
    with tf.device(THERE):
        w = tf.Variable([2.0, 3.0])

    def f(x):
        value = tf.convert_to_tensor(w)
        if kind == "branch":
            return tf.cond(value[0] > 0, lambda: x * value, lambda: x - value)
        if kind == "loop":
            return tf.while_loop(lambda i, y: i < 1, lambda i, y: (i + 1, y * value), (0, x))[1]
        return tf.function(lambda y: y * value)(x)

    return w, f


@pytest.mark.parametrize("kind", ["branch", "loop", "function"])
def test_a_value_read_on_another_device_goes_into_a_function_inside(kind):
    w, f = made(kind)
    x, spec = tf.constant([1.0, 2.0]), tf.TensorSpec([2])
    function = concrete(f, spec)
    with tf.device(HERE):
        (raw,) = raw_call(function, [x, *function.captured_inputs], [tf.float32])
    (fast,) = Call(lambda x: [f(x)], [spec], HERE)(x)
    (bound,) = trace(f, spec).on(HERE, [x], {w.ref(): w.handle})
    assert [result.numpy().tolist() for result in (raw, fast, bound)] == [[2.0, 6.0]] * 3


def test_it_is_placed_as_strictly_as_was_asked_for():
    def is_soft():
        return tf.compat.v1.ConfigProto.FromString(placement_options()).allow_soft_placement

    before = tf.config.get_soft_device_placement()
    try:
        for soft in (False, True):
            tf.config.set_soft_device_placement(soft)
            assert is_soft() is soft
    finally:
        tf.config.set_soft_device_placement(before)


def test_it_is_called_on_its_device():
    (result,) = Call(lambda x: [x + 1.0], NUMBER, "/device:CPU:3")(tf.constant(2.0))
    assert float(result) == 3.0
    assert result.device.endswith("CPU:3")


def test_other_variables_take_the_place_of_those_that_it_captured():
    total, scale = tf.Variable(1.0), tf.Variable(3.0)
    mine = tf.Variable(10.0)

    def add(x):
        return [total.assign_add(scale * x).read_value()]

    own, other = (Call(add, NUMBER, "/device:CPU:0", v) for v in (None, {total.ref(): mine}))
    assert own.used == other.used == {total.ref(), scale.ref()}
    assert float(other(tf.constant(2.0))[0]) == 16.0
    assert (float(total), float(mine)) == (1.0, 16.0)
    assert float(own(tf.constant(2.0))[0]) == 7.0
    assert (float(total), float(mine)) == (7.0, 16.0)


def test_threads_may_call_it_at_the_same_time():
    count = tf.Variable(0, dtype=tf.int64)
    call = Call(lambda: [count.assign_add(1).read_value()], [], "/device:CPU:0")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: call(), range(200)))
    assert int(count) == 200
