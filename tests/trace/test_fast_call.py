"""Calls of a traced function from eager code."""

from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from colonnade.run.trace.fast_call import Call

NUMBER = [tf.TensorSpec([])]


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
