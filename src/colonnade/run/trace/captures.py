"""What a traced function captured (variables, tables, constants), and whether it reads or writes it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
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
LOOPS = ("While", "StatelessWhile")
PASSES = ("Identity", "IdentityN")


@dataclass(frozen=True)
class Capture:
    """Something from outside that a traced function uses."""

    tensor: Any
    variable: Any  # the tf.Variable whose handle it is, or None
    used_by: frozenset[str]  # types of the ops that use it, in called functions too
    written: bool  # whether one of them may change it
    looped: bool  # whether one of them is in a loop
    writers: frozenset[str]  # names of the ops in the trace itself that may change it, or call what may


def captures(concrete: Any, graph: Any = None) -> tuple[Capture, ...]:
    """The captures of a concrete function, in the order of its captured inputs; `graph` is its GraphDef."""
    by_handle = {id(variable.handle): variable for variable in concrete.graph.variables}
    tensors = concrete.captured_inputs
    inputs = concrete.inputs[len(concrete.inputs) - len(tensors) :]
    graph = graph or concrete.graph.as_graph_def()
    functions = {function.signature.name: _Function(function) for function in graph.library.function}
    consumers = _consumers(graph.node)
    captured = []
    for tensor, placeholder in zip(tensors, inputs, strict=True):
        uses = set(_users(consumers, placeholder.op.name, functions))
        types, looped = frozenset(op for op, *_ in uses), any(inside for _, inside, _ in uses)
        writers = frozenset(name for op, _, name in uses if op not in READS)
        captured.append(Capture(tensor, by_handle.get(id(tensor)), types, bool(writers), looped, writers))
    return tuple(captured)


def ancestors(*last: Any) -> list[Any]:
    """Some ops, and all whose results they use, directly or not."""
    ops, waiting = {}, list(last)
    while waiting:
        current = waiting.pop()
        if current.name not in ops:
            ops[current.name] = current
            waiting.extend(tensor.op for tensor in current.inputs)
    return list(ops.values())


def descendants(*first: Any) -> set[str]:
    """The names of some ops, and of all that use their results, directly or not."""
    names, waiting = set[str](), list(first)
    while waiting:
        current = waiting.pop()
        if current.name not in names:
            names.add(current.name)
            waiting.extend(op for output in current.outputs for op in output.consumers())
    return names


# By the name of a node: who takes an output of it, as which input, and which output.
Consumers = dict[str, list[tuple[Any, int, str]]]


class _Function:
    """A function of a graph's library, searched once and not for each capture."""

    def __init__(self, definition: Any) -> None:
        self.arguments = [argument.name for argument in definition.signature.input_arg]
        self.consumers = _consumers(definition.node_def)


def _consumers(body: Iterable[Any]) -> Consumers:
    consumers: Consumers = defaultdict(list)
    for node in body:
        for position, name in enumerate(node.input):
            # An input is `x`, `x:0`, or inside a function `x:output:0`.
            source, *output = name.split(":")
            consumers[source].append((node, position, output[-1] if output else "0"))
    return consumers


def _users(
    consumers: Consumers,
    source: str,
    functions: dict[str, _Function],
    looped: bool = False,
    outermost: str | None = None,
) -> Iterator[tuple[str, bool, str]]:
    """Of the ops that use what a node puts out, or of `name:k` the output k only: type, if in a loop, and the
    op of the trace itself that it is called by, or is.
    """
    name, _, wanted = source.partition(":")
    for node, position, output in consumers.get(name, ()):
        if wanted and output != wanted:
            continue
        if node.op in PASSES:
            handed_on = f"{node.name}:{position}" if node.op == "IdentityN" else node.name
            yield from _users(consumers, handed_on, functions, looped, outermost)
        elif node.op in CALLS and position >= CALLS[node.op]:
            for function in _called(node, functions):
                argument = function.arguments[position - CALLS[node.op]]
                inside, caller = looped or node.op in LOOPS, outermost or node.name
                yield from _users(function.consumers, argument, functions, inside, caller)
        else:
            yield node.op, looped, outermost or node.name


def _called(node: Any, functions: dict[str, _Function]) -> list[_Function]:
    values = [value for attribute in node.attr.values() for value in (attribute.func, *attribute.list.func)]
    return [functions[value.name] for value in values if value.name in functions]
