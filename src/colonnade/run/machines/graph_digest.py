"""Tells graphs apart by what they compute: each op by what it is told, and by what its inputs are made of.

Names of ops and functions, and the order in which they stand, may differ from process to process, so they do
not count. Nor do control inputs: TensorFlow adds many by itself. An input of the graph is known by a label
that whoever asks gives it. An op's digest has those of its inputs in it, in order: `x - y` is not `y - x`.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

# What ops are told that says where something is, or how it is called, and not what is computed. A seed of
# tf.random belongs to a replica, and so does the beginning of what tf.print prints.
NAMES = ("shared_name", "container", "message", "token", "template", "seed", "seed2")
# Which gradient is added first may differ.
COMMUTATIVE = ("Add", "AddN", "AddV2", "Maximum", "Minimum", "Mul")


class GraphDigest:
    """The digests of the ops of one graph, with those of the functions that it calls.

    Args:
        graph: a GraphDef.
        labels: by their names, what the inputs of the graph are.
        sizes: whether it counts what ops are told: shapes, axes, constants. If not, only their types do.
    """

    def __init__(self, graph: Any, labels: Mapping[str, str], *, sizes: bool = True) -> None:
        self._functions = {function.signature.name: function for function in graph.library.function}
        self._sizes = sizes
        self._of_functions: dict[str, str] = {}
        self.ops = sorted(self._digests(graph.node, labels).values())

    def _digests(self, body: Any, labels: Mapping[str, str]) -> dict[str, str]:
        """By its name, the digest of each node."""
        nodes, made = {node.name: node for node in body}, dict[str, str]()
        entered = set[str]()
        for last in nodes:
            waiting = [last]
            while waiting:
                name = waiting[-1]
                if name in made:
                    waiting.pop()
                    continue
                sources = [source for source, _ in _inputs(nodes[name]) if source in nodes]
                missing = [s for s in sources if s not in made and s not in entered]
                if name not in entered and missing and name not in labels:
                    entered.add(name)
                    waiting += missing
                    continue
                # Of what it is in a circle with, as in a loop of TensorFlow 1, nothing is known here yet.
                made[name] = self._digest(nodes[name], labels, made)
                waiting.pop()
        return made

    def _digest(self, node: Any, labels: Mapping[str, str], made: Mapping[str, str]) -> str:
        if node.name in labels:
            return _hashed("input", labels[node.name])
        inputs = [
            f"{made.get(source) or labels.get(source, 'circle')} {output}" for source, output in _inputs(node)
        ]
        if node.op in COMMUTATIVE:
            inputs.sort()
        return _hashed(node.op, *self._told(node), *inputs)

    def _told(self, node: Any) -> Iterator[bytes | str]:
        """What a node is told."""
        if not self._sizes:
            yield str(node.attr["T"].type) if "T" in node.attr else ""
        for name in sorted(node.attr):
            value = node.attr[name]
            if name.startswith("_") or name in NAMES:
                continue
            called = [value.func] if value.WhichOneof("value") == "func" else list(value.list.func)
            if called:
                yield from (name, *(self._of_function(one.name) for one in called))
            elif self._sizes and not (name == "value" and _is_a_word(node)):
                yield from (name, value.SerializeToString(deterministic=True))

    def _of_function(self, name: str) -> str:
        if name not in self._functions:  # TensorFlow's own, of another kind
            return ""
        if name not in self._of_functions:
            self._of_functions[name] = ""  # one that calls itself
            function = self._functions[name]
            arguments = {arg.name: f"argument {i}" for i, arg in enumerate(function.signature.input_arg)}
            made = self._digests(function.node_def, arguments)
            results = [_parted(function.ret[out.name]) for out in function.signature.output_arg]
            ends = [f"{made.get(source) or arguments.get(source)} {output}" for source, output in results]
            self._of_functions[name] = _hashed(*ends, *sorted(made.values()))
        return self._of_functions[name]


def _is_a_word(node: Any) -> bool:
    """Whether it is a constant of one string, which may be a message with names in it.

    Several are words to choose from, and each process has an order of its own of a set of them.
    """
    words = node.attr["dtype"].type == tf.string.as_datatype_enum
    return bool(words and not node.attr["value"].tensor.tensor_shape.dim)


def _inputs(node: Any) -> Iterator[tuple[str, str]]:
    """The nodes that it takes something of, and which output of each."""
    return (_parted(name) for name in node.input if not name.startswith("^"))


def _parted(name: str) -> tuple[str, str]:
    """Of an input, which is `x`, `x:0`, or inside a function `x:output:0`."""
    source, _, output = name.partition(":")
    return source, output or "0"


def _hashed(*facts: bytes | str) -> str:
    made = hashlib.sha256()
    for fact in facts:
        part = fact.encode() if isinstance(fact, str) else fact
        made.update(len(part).to_bytes(8, "big") + part)
    return made.hexdigest()
