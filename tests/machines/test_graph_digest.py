"""Graphs that compute something else are told apart, and others are not."""

import inspect

import pytest
import tensorflow as tf

from colonnade.run.machines.graph_digest import GraphDigest


def ops_of(function, shape=(4, 3), **options):
    """The digests of a graph of one or two arguments."""
    count = len(inspect.signature(function).parameters)
    concrete = tf.function(function).get_concrete_function(*[tf.TensorSpec(shape)] * count)
    labels = {tensor.op.name: f"argument {i}" for i, tensor in enumerate(concrete.inputs)}
    return GraphDigest(concrete.graph.as_graph_def(), labels, **options).ops


def test_graphs_that_differ_in_a_number_an_axis_or_a_branch_are_told_apart():
    graphs = [
        lambda x: tf.reduce_sum(x * 0.1),
        lambda x: tf.reduce_sum(x * 0.2),
        lambda x: tf.reduce_sum(x * 0.1, axis=0),
        lambda x: tf.reduce_sum(x * 0.1, axis=1),
        lambda x: tf.nn.dropout(x, 0.1),
        lambda x: tf.nn.dropout(x, 0.2),
        lambda x: tf.cond(x[0, 0] > 0, lambda: x * 2.0, lambda: x),
        lambda x: tf.cond(x[0, 0] > 0, lambda: x * 3.0, lambda: x),
        lambda x: tf.einsum("ij,kj->ik", x, x),
        lambda x: tf.einsum("ij,kj->ki", x, x),
        lambda x: tf.equal(tf.as_string(x), tf.constant(["a", "b", "c"])),
        lambda x: tf.equal(tf.as_string(x), tf.constant(["a", "c", "b"])),
    ]
    found = [tuple(ops_of(graph)) for graph in graphs]
    assert len(set(found)) == len(graphs)
    assert found == [tuple(ops_of(graph)) for graph in graphs]


def test_names_seeds_and_what_is_printed_do_not_make_another_graph():
    def one(name, label, seed):
        def function(x):
            with tf.name_scope(name):
                tf.print(label, tf.reduce_sum(x))
                checked = tf.debugging.check_numerics(x, f"{name} is not finite")
                tf.debugging.assert_greater(checked, 0.0, message=name)
                y = tf.py_function(lambda v: v, [checked], tf.float32)
                y = tf.cond(x[0, 0] > 0, lambda: y * 2.0, lambda: y)
                return y + tf.random.normal([3], seed=seed)

        return function

    assert ops_of(one("here", "[CPU:0]", 1)) == ops_of(one("there", "[CPU:1]", 2))


@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize(
    "graphs",
    [
        (lambda x, y: x - y, lambda x, y: y - x),
        (lambda x, y: tf.exp(x) - tf.sin(y), lambda x, y: tf.sin(y) - tf.exp(x)),
        (lambda x, y: tf.exp(tf.sin(x)) / y, lambda x, y: tf.sin(tf.exp(x)) / y),
        (
            lambda x, y: tf.while_loop(lambda i, _: i < 3.0, lambda i, z: (i + 1.0, z - y), (0.0, x)),
            lambda x, y: tf.while_loop(lambda i, _: i < 3.0, lambda i, z: (i + 1.0, y - z), (0.0, x)),
        ),
        (
            lambda x, y: tf.cond(x[0, 0] > 0, lambda: x, lambda: y),
            lambda x, y: tf.cond(x[0, 0] > 0, lambda: y, lambda: x),
        ),
        (lambda x, y: tf.split(x, 2)[0] - y[:2], lambda x, y: tf.split(x, 2)[1] - y[:2]),
    ],
)
def test_what_goes_where_counts(graphs, sizes):
    one, other = (ops_of(graph, sizes=sizes) for graph in graphs)
    assert one != other
    assert one == ops_of(graphs[0], sizes=sizes)


def test_sums_are_the_same_whatever_comes_first():
    assert ops_of(lambda x, y: x + y) == ops_of(lambda x, y: y + x)
    assert ops_of(lambda x, y: tf.add_n([x, y, x])) == ops_of(lambda x, y: tf.add_n([x, x, y]))


def test_sizes_can_be_left_out():
    def graph(x):
        return tf.reduce_sum(tf.exp(x) / x.shape[0])

    assert ops_of(graph, (4, 3)) != ops_of(graph, (5, 3))
    assert ops_of(graph, (4, 3), sizes=False) == ops_of(graph, (5, 3), sizes=False)


def test_a_loop_of_the_first_tensorflow_has_an_end():
    """Its ops are in a circle."""
    with tf.Graph().as_default() as graph:
        tf.compat.v1.while_loop(lambda i: i < 3, lambda i: [i + 1], [tf.constant(0)])
    looped = graph.as_graph_def()
    if not any(node.op == "NextIteration" for node in looped.node):  # made by hand, where loops are functions
        looped = tf.compat.v1.GraphDef()
        for name, op, inputs in (("m", "Merge", ["n"]), ("n", "NextIteration", ["m"])):
            looped.node.add(name=name, op=op, input=inputs)
    assert len(GraphDigest(looped, {}).ops) == len(looped.node)
