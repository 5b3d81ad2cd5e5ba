"""The graph of a call as TensorFlow runs it: inlined, optimised, placed and cut into one part per device."""

import tempfile
from pathlib import Path

import tensorflow as tf


class Executed:
    """The nodes of the functions that a call made TensorFlow build, and what each of them waits for."""

    def __init__(self, call):
        with tempfile.TemporaryDirectory() as folder:
            writer = tf.summary.create_file_writer(folder)
            tf.summary.trace_on(graph=True, profiler=False)
            call()
            with writer.as_default(), tf.summary.record_if(True):
                tf.summary.trace_export("graph", step=0)
            writer.close()
            graphs = [graph for path in Path(folder).glob("events*") for graph in _graphs(str(path))]
        self.nodes = {node.name: node for graph in graphs for node in graph.node}
        self._sends = {n.attr["tensor_name"].s: n for n in self.nodes.values() if "Send" in n.op}

    def all(self, op):
        return [node for node in self.nodes.values() if node.op == op]

    def above(self, *nodes):
        """The names of all nodes that must be done before these, over devices too."""
        seen, todo = set(), [node.name for node in nodes]
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            node = self.nodes[name]
            todo += [source.lstrip("^").partition(":")[0] for source in node.input]
            if "Recv" in node.op:
                todo.append(self._sends[node.attr["tensor_name"].s].name)
        return seen


def _graphs(path):
    for record in tf.data.TFRecordDataset(path):
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
            for data in value.tensor.string_val:
                for function in tf.compat.v1.RunMetadata.FromString(data).function_graphs:
                    yield from function.partition_graphs
