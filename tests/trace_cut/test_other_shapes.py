"""Which shapes a graph gives for arguments of other shapes."""

import pytest
import tensorflow as tf

from colonnade.run.trace_cut.other_shapes import shapes_from


def graph_of(fn):
    return tf.function(fn).get_concrete_function(tf.TensorSpec([4, 3], name="x"))


def test_shapes_are_inferred_from_other_ones():
    traced = graph_of(lambda x: (x @ tf.ones([3, 2]), tf.transpose(x), tf.reduce_sum(x, axis=0)))
    shapes = shapes_from(traced.outputs, {"x": [8, 3]})
    assert [shape.as_list() for shape in shapes] == [[8, 2], [3, 8], [3]]


def test_what_does_not_go_with_them_is_an_error():
    traced = graph_of(lambda x: x + tf.ones([4, 3]))
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        shapes_from(traced.outputs, {"x": [8, 3]})
