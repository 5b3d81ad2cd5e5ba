"""What a traced graph does with the things it captured, read from its GraphDef."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

READS = frozenset(
    ["ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"]
)
# Ops that hand a handle on, with the way from their inputs to the arguments of the functions they call.
CALLS = {
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "While": 0,
    "StatelessWhile": 0,
    "If": 1,
    "StatelessIf": 1,
    "Case": 1,
    "StatelessCase": 1,
}
PASSES = ("Identity", "IdentityN")


@dataclass(frozen=True)
class Capture:
    """Something from outside that a traced function uses."""

    tensor: Any
    variable: Any  # the tf.Variable whose handle it is, or None
    used_by: frozenset[str]  # types of the ops that use it, in called functions too

    @property
    def written(self) -> bool:
        return not self.used_by <= READS


def captures(concrete: Any) -> tuple[Capture, ...]:
    """The captures of a concrete function, in the order of its captured inputs."""
    by_handle = {id(variable.handle): variable for variable in concrete.graph.variables}
    tensors = concrete.captured_inputs
    inputs = concrete.inputs[len(concrete.inputs) - len(tensors) :]
    graph = concrete.graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    return tuple(
        Capture(
            tensor,
            by_handle.get(id(tensor)),
            frozenset(_users(graph.node, placeholder.op.name, functions)),
        )
        for tensor, placeholder in zip(tensors, inputs, strict=True)
    )


def nodes(graph: Any) -> Iterator[Any]:
    """All nodes of a graph and of the functions in its library."""
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def


def _users(body: Any, source: str, functions: dict[str, Any]) -> Iterator[str]:
    """Types of the ops that use the tensor `source` (a name without output number, or `name:...:k`)."""
    for node in body:
        for position, name in enumerate(node.input):
            if not _names(name, source):
                continue
            if node.op in PASSES:
                yield from _users(
                    body, f"{node.name}:{position}" if node.op == "IdentityN" else node.name, functions
                )
            elif node.op in CALLS and position >= CALLS[node.op]:
                for function in _called(node, functions):
                    argument = function.signature.input_arg[position - CALLS[node.op]].name
                    yield from _users(function.node_def, argument, functions)
            else:
                yield node.op


def _names(name: str, source: str) -> bool:
    """Whether an input refers to a tensor: `x`, `x:0`, or inside a function `x:output:0`."""
    node, _, output = source.partition(":")
    parts = name.split(":")
    if parts[0] != node:
        return False
    return not output or (parts[-1] if len(parts) > 1 else "0") == output


def _called(node: Any, functions: dict[str, Any]) -> list[Any]:
    values = [value for attribute in node.attr.values() for value in (attribute.func, *attribute.list.func)]
    return [functions[value.name] for value in values if value.name in functions]
