"""Tells which shapes a traced function would give for arguments of other shapes, without tracing it again.

TensorFlow infers them when a graph is imported. What Python knew of a shape while it traced is a constant in
the graph, so the answer may be the old shape, or none, or an error, where another trace would tell.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import ancestors


def shapes_from(tensors: Sequence[Any], given: Mapping[str, Sequence[int | None]]) -> list[tf.TensorShape]:
    """The shapes of tensors of one graph if some of its placeholders, by their names, had these ones.

    Raises:
        ValueError: ops of the graph do not go with such shapes.
    """
    graph = tensors[0].graph
    names = {op.name for op in ancestors(*(tensor.op for tensor in tensors))}
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(library=whole.library, versions=whole.versions)
    for node in (one for one in whole.node if one.name in names):
        added = part.node.add()
        added.CopyFrom(node)
        added.input[:] = [name for name in node.input if not name.startswith("^")]
        if node.name in given:
            added.attr["shape"].shape.CopyFrom(tf.TensorShape(given[node.name]).as_proto())
    with tf.Graph().as_default():
        wanted = [tensor.name for tensor in tensors]
        return [t.shape for t in tf.graph_util.import_graph_def(part, return_elements=wanted, name="")]
