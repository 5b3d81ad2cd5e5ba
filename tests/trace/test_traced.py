import numpy as np
import tensorflow as tf

from colonnade.run.trace.traced import trace


def test_variables_read_and_written():
    w, count = tf.Variable([2.0], name="w"), tf.Variable(0.0, trainable=False, name="count")

    @tf.function
    def nested(x):
        if tf.reduce_sum(x) > 0:
            count.assign_add(1.0)
        return x * w

    traced = trace(lambda x: nested(x) + w, tf.TensorSpec([3]))
    assert {v.name for v in traced.variables} == {"w:0", "count:0"}
    assert [v.name for v in traced.written] == ["count:0"]


def test_a_read_in_a_loop_is_no_write():
    w = tf.Variable([2.0])

    def f(x):
        for _ in tf.range(3):
            x = x * w
        return x

    traced = trace(f, tf.TensorSpec([3]))
    assert traced.variables == (w,)
    assert traced.written == ()


def test_other_variables_take_the_place_of_the_captured_ones():
    w, other = tf.Variable([2.0]), tf.Variable([5.0])
    traced = trace(lambda x: {"y": x * w, "n": 7}, tf.TensorSpec([3]))

    @tf.function
    def both(x):
        shared = traced.on("/device:CPU:1", [x])
        rebound = traced.on("/device:CPU:2", [x], {w.ref(): other.handle}, replica=1)
        return traced.pack(shared)["y"], traced.pack(rebound)["y"]

    assert [y.numpy().tolist() for y in both(tf.ones(3))] == [[2.0] * 3, [5.0] * 3]


def test_a_write_goes_to_the_variable_that_was_put_in_place():
    count, mine = tf.Variable(0.0), tf.Variable(10.0)
    traced = trace(lambda x: x + count.assign_add(1.0), tf.TensorSpec([]))
    out = tf.function(lambda x: traced.on("/device:CPU:1", [x], {count.ref(): mine.handle}))(tf.constant(0.0))
    assert float(out[0]) == 11.0
    assert float(count) == 0.0
    assert float(mine) == 11.0


def test_the_line_of_a_node_inside_a_branch():
    def f(x):
        if tf.reduce_sum(x) > 0:
            x = tf.linalg.inv(x)
        return x

    traced = trace(f, tf.TensorSpec([2, 2]))
    conditional = next(op.name for op in traced.concrete.graph.get_operations() if "If" in op.type)
    assert "test_traced.py" in traced.line_of(f"{conditional}/deeper/node")
    assert traced.line_of("no_such_node") is None


def test_seeded_and_speaking_functions_are_recognised():
    tf.random.set_seed(1)
    seeded = trace(lambda x: x + tf.random.normal([3]), tf.TensorSpec([3]))
    assert seeded.repeats
    assert not seeded.speaks
    generator = tf.random.Generator.from_seed(1)
    assert not trace(lambda x: x + generator.normal([3]), tf.TensorSpec([3])).repeats

    def speaks_in_a_loop(x):
        for _ in tf.range(2):
            tf.print(x)
        return x

    assert trace(speaks_in_a_loop, tf.TensorSpec([3])).speaks


def test_autograph_is_for_the_users_code():
    def f(x):
        total = tf.constant(0.0)
        for row in x:
            if tf.reduce_sum(row) > 0:
                total += tf.reduce_sum(row)
        return x + total

    traced = trace(f, tf.TensorSpec([3, 2]))
    np.testing.assert_array_equal(traced.on("/device:CPU:0", [tf.ones([3, 2])])[0], 7 * np.ones([3, 2]))
