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
            functions = [graphs for path in Path(folder).glob("events*") for graphs in _functions(str(path))]
        # Names are those of one function: another one may have the same, and sends of the same name.
        self.nodes = {}
        for number, graphs in enumerate(functions):
            for node in (node for graph in graphs for node in graph.node):
                node.name = f"{number}|{node.name}"
                self.nodes[node.name] = node
        self._sends = {_sent(node): node for node in self.nodes.values() if "Send" in node.op}

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
            node, function = self.nodes[name], name.partition("|")[0]
            todo += [f"{function}|{source.lstrip('^').partition(':')[0]}" for source in node.input]
            if "Recv" in node.op:
                todo.append(self._sends[_sent(node)].name)
        return seen


def _sent(node):
    return node.name.partition("|")[0], node.attr["tensor_name"].s


def _functions(path):
    for record in tf.data.TFRecordDataset(path):
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
            for data in value.tensor.string_val:
                for function in tf.compat.v1.RunMetadata.FromString(data).function_graphs:
                    yield function.partition_graphs
