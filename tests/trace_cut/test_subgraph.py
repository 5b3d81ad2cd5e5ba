"""Parts of a trace as functions of their own."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.trace.traced import trace
from colonnade.run.trace_cut.subgraph import CuttableGraph, node_of, tensor_of

X = np.array([1.0, 2.0, 3.0], "float32")


@pytest.fixture(scope="module")
def halves():
    """`w * tanh(x) + 1`, cut behind the tangent, with the tensor between the halves."""
    w = tf.Variable(2.0)
    cutting = CuttableGraph(trace(lambda x: tf.tanh(x) * w + 1.0, tf.TensorSpec([3])))
    (tangent,) = (name for name, node in cutting.nodes.items() if node.op == "Tanh")
    first = cutting.with_constants({tangent})
    second = cutting.with_constants(set(cutting.nodes) - cutting.given - first)
    between = f"{tangent}:0"
    (output,) = (name for name, node in cutting.nodes.items() if node.op == "AddV2")
    return w, cutting, first, second, between, f"{output}:0"


def test_halves_one_after_the_other_are_the_whole(halves):
    w, cutting, first, second, between, output = halves
    one = cutting.part(first, cutting.inputs(first), [between])
    two = cutting.part(second, cutting.inputs(second), [output])
    assert one.outputs == (between,)
    assert between in two.inputs
    assert between not in one.inputs
    (value,) = one.function(tf.constant(X))
    given = {between: value}
    handles = [given.get(name, w.handle) for name in two.inputs]
    (result,) = two.function(*handles)
    np.testing.assert_allclose(result, 2 * np.tanh(X) + 1, rtol=1e-6)


def test_a_part_may_tell_when_it_started_and_ended(halves):
    _, cutting, first, _, between, _ = halves
    stamped = cutting.part(first, cutting.inputs(first), [between], stamped=True)
    start, end, value = stamped.function(tf.constant(X))
    assert 0 < float(start) <= float(end)
    np.testing.assert_allclose(value, np.tanh(X), rtol=1e-6)


def test_what_does_more_than_to_compute():
    count = tf.Variable(0.0)

    def f(x):
        count.assign_add(1.0)
        return x + count

    cutting = CuttableGraph(trace(f, tf.TensorSpec([3])))
    effects = {cutting.nodes[name].op for name in cutting.nodes if cutting.has_effect(name)}
    assert effects == {"AssignAddVariableOp"}


def test_a_part_that_returns_a_shape_runs_by_itself():
    """TensorFlow refuses to, where the type says that a number is a shape."""
    cutting = CuttableGraph(trace(lambda x: tf.reshape(x * 2.0, tf.shape(x)), tf.TensorSpec([None, None])))
    (shape,) = (name for name, node in cutting.nodes.items() if node.op == "Shape")
    part = cutting.part({shape}, cutting.inputs({shape}), [f"{shape}:0"])
    (found,) = tf.raw_ops.StatefulPartitionedCall(args=[tf.ones([2, 3])], Tout=[tf.int32], f=part.function)
    assert found.numpy().tolist() == [2, 3]


def test_names_of_nodes_and_tensors():
    assert [node_of(name) for name in ("x", "x:1", "^x")] == ["x"] * 3
    assert [tensor_of(name) for name in ("x", "x:1")] == ["x:0", "x:1"]
