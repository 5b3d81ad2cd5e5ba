"""Which examples the rows of a sparse gradient (IndexedSlices of an embedding) come from.

A table that is looked up by the ids of a batch has a row in its gradient for every lookup, so the rows of
two slices, one after the other, are those of the whole batch. But a table that is read at rows which do
not come from the batch (positions 0 to n, say) has each row once, in the gradient of a slice and in
that of the whole batch. Optimizers see the difference: most of them square every row that they are given.

    own    a row for every lookup of an example: the rows of slices are put one after the other
    same   the same rows in the same order for every slice: their values are added
    once   no row twice in a slice, as tf.unique makes them: nor is there one twice in a sum
    mixed  rows of several kinds, of which nobody can tell where one ends
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import READS

OWN, SAME, ONCE, MIXED = "own", "same", "once", "mixed"
DENSE = "dense"

# These hand on the rows of their first input.
PASSES = ("Identity", "Reshape", "Cast", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient")
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
DISTINCT = ("Unique", "UniqueV2", "Range")
# Of what they are given they look at the shape only.
SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
# The shape of what they make depends on values.
FILTERS = ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "Range", "DynamicPartition", "Bincount")
# What they make is another thing on every replica.
ERRATIC = ("Random", "Rng", "Sampler", "Multinomial", "PyFunc")


@dataclass(frozen=True)
class RowsOfOneSource:
    """Rows of a sparse gradient that have one source."""

    kind: str
    shape: tuple[int | None, ...] | None = None  # of the indices as they were looked up, where that is known


# A gradient: none, dense, or the pieces of a sparse one.
Form = None | str | tuple[RowsOfOneSource, ...]


@dataclass(frozen=True)
class Source:
    """What in the graph of a trace differs from slice to slice, by the names of its placeholders."""

    values: frozenset[str]  # tensors that are split, and variables that the function changes
    shapes: frozenset[str]  # those whose shape differs too: the parts of ragged and sparse tensors


def sections(indices: Any) -> list[Any]:
    """The indices of each lookup of a table, which the gradient has one after the other."""
    if indices.op.type == "ConcatV2":
        return [part for given in indices.op.inputs[:-1] for part in sections(given)]
    return sections(indices.op.inputs[0]) if indices.op.type == "Identity" else [indices]


def sizes_of(indices: Any) -> list[Any]:
    """How many rows each lookup has: numbers where the graph knows them."""
    return [tf.size(s) if (n := s.shape.num_elements()) is None else n for s in sections(indices)]


def pieces(indices: Any, source: Source) -> list[RowsOfOneSource]:
    """The rows of a gradient, lookup by lookup; `indices` is a tensor in the graph of the trace."""
    graph = indices.graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    outermost = _Body({node.name: node for node in graph.node}, functions)
    return [_piece(part, outermost, source) for part in sections(indices)]


def lookups(indices: Any, given: Sequence[Any]) -> list[tuple[Any, str, tuple[int | None, ...] | None]]:
    """The indices of each lookup, its kind, and the shape that they had, while a function is being traced.

    `given` are the tensors of the slice. What the function has written to by now is another thing there too.
    """
    parts = [[part.op.name for part in tf.nest.flatten(one, expand_composites=True)] for one in given]
    handles = [
        op
        for op in indices.graph.get_operations()
        if op.type == "Placeholder" and op.outputs[0].dtype == tf.resource
    ]
    written = {op.name for op in handles if any(user.type not in READS for user in op.outputs[0].consumers())}
    split = {name for names in parts for name in names}
    loose = {name for names in parts if len(names) > 1 for name in names}
    kinds = pieces(indices, Source(frozenset(split | written), frozenset(loose)))
    return [(part, one.kind, one.shape) for part, one in zip(sections(indices), kinds, strict=True)]


def _piece(indices: Any, body: "_Body", source: Source) -> RowsOfOneSource:
    origins = list(_origins(body, indices.name))
    kinds = [_kind(*origin, source) for origin in origins]
    if len(origins) > 1:
        return RowsOfOneSource(OWN if set(kinds) == {OWN} else MIXED)
    ((inner, name),) = origins
    if inner is body:
        full = name if ":" in name else f"{name}:0"
        shape = indices.graph.get_tensor_by_name(full).shape
    else:
        shape = indices.shape
        if kinds[0] == SAME and not shape.is_fully_defined():  # a row for every example, perhaps
            return RowsOfOneSource(MIXED)
    return RowsOfOneSource(kinds[0], None if shape.rank is None else tuple(shape))


def _kind(body: "_Body", name: str, source: Source) -> str:
    node, output = body.made(name)
    if node is not None and node.op in DISTINCT and output in ("0", "y", "output"):
        return ONCE
    return OWN if _differs(body, name, source) else SAME


@dataclass
class _Body:
    """The nodes of a graph, or of a function that it calls."""

    nodes: Mapping[str, Any]
    functions: Mapping[str, Any]
    arguments: Mapping[str, tuple["_Body", str]] = field(default_factory=dict)  # of the call
    results: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    _called: dict[str, list["_Body"]] = field(default_factory=dict)  # by the name of the node

    @property
    def is_outermost(self) -> bool:
        return not self.outputs

    def made(self, name: str) -> tuple[Any, str]:
        """The node that makes a tensor, if it is not an argument, and which of its outputs it is.

        A tensor is `node`, `node:1`, or in a function `node:output:1`. Of outputs with a name of their
        own the name tells; of those that are one list, the place.
        """
        node, *output = name.split(":")
        listed = not output or len(output) == 1 or output[0] == "output"
        return self.nodes.get(node), (output or ["0"])[-1 if listed else 0]

    def called(self, node: Any, skipped: int = 0) -> list["_Body"]:
        """The functions that a node calls; the first inputs may not be arguments of theirs."""
        if node.name not in self._called:
            self._called[node.name] = self._bodies(node, skipped)
        return self._called[node.name]

    def _bodies(self, node: Any, skipped: int) -> list["_Body"]:
        given = [(self, name) for name in node.input if not name.startswith("^")][skipped:]
        values = [v for attribute in node.attr.values() for v in (attribute.func, *attribute.list.func)]
        return [
            _Body(
                {inner.name: inner for inner in function.node_def},
                self.functions,
                dict(zip([a.name for a in function.signature.input_arg], given, strict=True)),
                function.ret,
                [a.name for a in function.signature.output_arg],
            )
            for value in values
            if (function := self.functions.get(value.name)) is not None
        ]

    def result(self, output: str) -> str:
        return self.results[self.outputs[int(output)]]


def _origins(body: _Body, name: str) -> Iterator[tuple[_Body, str]]:
    """What some indices are made of, behind ops that only hand them on: the bodies and names of tensors."""
    node, output = body.made(name)
    if node is None and name in body.arguments:
        yield from _origins(*body.arguments[name])
    elif node is not None and node.op == "ConcatV2":
        for given in node.input[: node.attr["N"].i]:
            yield from _origins(body, given)
    elif node is not None and node.op in PASSES:
        yield from _origins(body, node.input[0])
    elif node is not None and node.op in (*CALLS, *BRANCHES):
        for function in body.called(node, node.op in BRANCHES):
            yield from _origins(function, function.result(output))
    else:
        yield body, name


def _differs(body: _Body, name: str, source: Source) -> bool:
    """Whether a tensor is another one for another slice of the same size."""
    waiting, seen = [(body, name, False)], set()
    while waiting:
        body, name, of_shape = waiting.pop()
        if (id(body), name, of_shape) in seen:
            continue
        seen.add((id(body), name, of_shape))
        node, output = body.made(name)
        if node is None:
            if name in body.arguments:
                waiting.append((*body.arguments[name], of_shape))
        elif _changes(node, of_shape, source if body.is_outermost else None):
            return True
        elif node.op in CALLS:
            waiting += [(f, f.result(output), of_shape) for f in body.called(node)]
        else:
            looks = of_shape or node.op in SHAPES
            waiting += [(body, given, looks) for given in node.input if not given.startswith("^")]
    return False


def _changes(node: Any, of_shape: bool, source: Source | None) -> bool:
    """Whether what a node makes, or the shape of it, is another thing in itself for another slice."""
    given = (source.shapes if of_shape else source.values) if source is not None else ()
    erratic = any(word in node.op for word in ERRATIC)
    return node.name in given or erratic or (of_shape and node.op in FILTERS)
