"""What a trace does with what it captured: read or written, by which ops, in loops or not."""

import tensorflow as tf

from colonnade.run.trace.captures import ancestors, captures
from colonnade.run.trace.ops import nodes


def of(fn, *specs):
    return captures(tf.function(fn, autograph=False).get_concrete_function(*specs))


def test_reads_and_writes_are_told_apart_in_called_functions_too():
    read, written, table = tf.Variable([1.0, 2.0]), tf.Variable(0.0), tf.Variable([[1.0], [2.0]])
    branch = tf.function(lambda x: written.assign_add(tf.reduce_sum(x)), autograph=False)

    def fn(x):
        tf.cond(x > 0, lambda: branch(read * x), lambda: branch(read))
        return tf.gather(table, [0])

    by_variable = {c.variable.ref(): c for c in of(fn, tf.TensorSpec([])) if c.variable is not None}
    assert {ref.deref().ref(): c.written for ref, c in by_variable.items()} == {
        read.ref(): False,
        written.ref(): True,
        table.ref(): False,
    }
    assert by_variable[table.ref()].used_by == {"ResourceGather"}


def test_what_is_no_variable_is_captured_as_a_tensor():
    constant = tf.constant([1.0, 2.0])
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1], [2]), 0)
    known = of(lambda x: (x + constant, table.lookup(tf.cast(x, tf.int32))), tf.TensorSpec([2]))
    assert [capture.variable for capture in known] == [None] * len(known)
    (number,) = (capture for capture in known if capture.tensor is constant)
    assert number.used_by == {"AddV2"}
    (looked_up,) = (capture for capture in known if capture.tensor is table.resource_handle)
    assert looked_up.used_by == {"LookupTableFindV2"}


def test_all_nodes_and_those_that_a_result_needs():
    inner = tf.function(lambda x: tf.sin(x), autograph=False)
    graph = tf.function(lambda x: (inner(x) + 1.0, tf.cos(x))).get_concrete_function(tf.TensorSpec([])).graph
    assert {"Sin", "Cos"} <= {node.op for node in nodes(graph.as_graph_def())}
    (added,) = (op for op in graph.get_operations() if op.type == "AddV2")
    above = {op.type for op in ancestors(added)}
    assert "Cos" not in above
    assert {"AddV2", "Const", "Placeholder"} <= above


def test_what_a_loop_reads_is_known():
    inside, outside = tf.Variable(1.0), tf.Variable(2.0)

    @tf.function(autograph=False)
    def fn(x):
        return outside * tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * inside), [0, x])[1]

    found = captures(fn.get_concrete_function(tf.constant(1.0)))
    looped = {capture.variable.ref(): capture.looped for capture in found if capture.variable is not None}
    assert looped == {inside.ref(): True, outside.ref(): False}
