"""Which examples the rows of a sparse gradient (IndexedSlices of an embedding) come from.

A table that is looked up by the ids of a batch has a row in its gradient for every lookup, so the rows of
two slices, one after the other, are those of the whole batch. But a table that is read at rows which do
not come from the batch (positions 0 to n, say) has each row once, in the gradient of a slice and in
that of the whole batch. Optimizers see the difference: most of them square every row that they are given.

    own     a row for every lookup of an example: the rows of slices are put one after the other
    same    the same rows in the same order for every slice: their values are added
    once    no row twice in a slice, as tf.unique makes them: nor is there one twice in a sum
    folded  made of distinct rows, and perhaps not distinct any more: nobody can tell those of the whole batch
    mixed   rows of several kinds, of which nobody can tell where one ends
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import LOOPS, READS, ancestors
from colonnade.run.trace.ops import draws, is_random
from colonnade.run.trace_cut.other_shapes import shapes_from

OWN, SAME, ONCE, FOLDED, MIXED = "own", "same", "once", "folded", "mixed"
DENSE = "dense"

# These hand on the rows of their first input.
PASSES = (
    *("Identity", "Reshape", "ExpandDims", "Squeeze", "EnsureShape"),
    *("StopGradient", "PreventGradient"),
)
CALLS = ("PartitionedCall", "StatefulPartitionedCall")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")
# Of their first output no value comes twice.
UNIQUE = ("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2")
FIRST = ("0", "y", "output", "values", "out")
# What is distinct in their first input is so in their first output: some of it, in some order, or negative.
CHOICES = (
    *("Neg", "Invert", "Slice", "StridedSlice", "ListDiff", "DynamicPartition"),
    *("RandomShuffle", "ReverseV2", "Transpose"),
)
SUMS = ("AddV2", "Add", "Sub")
GATHERS = ("GatherV2", "Gather", "GatherNd")
# Of what they are given they look at the shape only.
SHAPES = ("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike")
# Of a dim that is not known, where only shapes are told from each other.
MADE_UP = 11
# The shape of what they make depends on values.
FILTERS = ("Where", *UNIQUE, "Range", "DynamicPartition", "Bincount")


@dataclass(frozen=True)
class RowsOfOneSource:
    """Rows of a sparse gradient that have one source."""

    kind: str
    shape: tuple[int | None, ...] | None = None  # of the indices as they were looked up, where that is known
    drawn: bool = False  # whether random numbers are in it, so that one device has other rows


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
    graph = indices.graph.as_graph_def(add_shapes=True)
    functions = {function.signature.name: function for function in graph.library.function}
    outermost = _Body({node.name: node for node in graph.node}, functions)
    return [_piece(part, outermost, source) for part in sections(indices)]


def is_known(shape: tuple[int | None, ...] | None) -> bool:
    return shape is not None and None not in shape


def made_up(indices: Any) -> tuple[int | None, ...] | None:
    """The shape of a tensor if all dims that its trace does not know were the same made-up number.

    Traces of other numbers of rows have another one if, and only if, it goes by these.
    """
    placeholders = [op for op in ancestors(indices.op) if op.type == "Placeholder"]
    shapes = {op.name: op.outputs[0].shape for op in placeholders}
    known = {
        name: [MADE_UP if size is None else size for size in shape]
        for name, shape in shapes.items()
        if shape.rank is not None
    }
    (shape,) = shapes_from([indices], known)
    return None if shape.rank is None else tuple(shape)


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
    found = [_kind(*origin, source) for origin in origins]
    kinds, drawn = [kind for kind, _ in found], any(each for _, each in found)
    if len(origins) > 1:
        return RowsOfOneSource(kinds[0] if set(kinds) in ({OWN}, {FOLDED}) else MIXED, drawn=drawn)
    ((inner, name),) = origins
    if inner is body:
        full = name if ":" in name else f"{name}:0"
        shape = indices.graph.get_tensor_by_name(full).shape
    else:
        shape = indices.shape
        if kinds[0] == SAME and not shape.is_fully_defined():  # a row for every example, perhaps
            return RowsOfOneSource(MIXED)
    return RowsOfOneSource(kinds[0], None if shape.rank is None else tuple(shape), drawn)


def _kind(body: "_Body", name: str, source: Source) -> tuple[str, bool]:
    """And whether random numbers are in it."""
    differs, drawn = _differs(body, name, source)
    if _distinct(body, name):
        return ONCE, drawn
    if not differs:
        return SAME, False
    return (FOLDED if _folded(body, name) else OWN), drawn


@dataclass
class _Body:
    """The nodes of a graph, or of a function that it calls."""

    nodes: Mapping[str, Any]
    functions: Mapping[str, Any]
    # Of the call, by name: what they are given, and those of a loop also what the last turn made.
    arguments: Mapping[str, list[tuple["_Body", str]]] = field(default_factory=dict)
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

    def dims(self, name: str) -> list[int] | None:
        """The dims of a tensor, -1 for those that are not known; None if their number is not known."""
        node, output = self.made(name)
        if node is None:
            given = self.arguments.get(name, ())
            return given[0][0].dims(given[0][1]) if given else None
        shapes = node.attr["_output_shapes"].list.shape
        place = int(output) if output.isdecimal() else int(output not in FIRST and len(shapes) > 1)
        if place >= len(shapes) or shapes[place].unknown_rank:
            return None
        return [dim.size for dim in shapes[place].dim]

    def called(self, node: Any) -> list["_Body"]:
        """The functions that a node calls; of a loop the body, and then the condition."""
        if node.name not in self._called:
            self._called[node.name] = self._bodies(node)
        return self._called[node.name]

    def _bodies(self, node: Any) -> list["_Body"]:
        given = [[(self, name)] for name in node.input if not name.startswith("^")]
        if node.op in LOOPS:
            turn, condition = (self._body(node.attr[part].func, given) for part in ("body", "cond"))
            again = [(turn, turn.result(str(i))) for i in range(len(given))]
            for body in (turn, condition):
                for sources, last in zip(body.arguments.values(), again, strict=True):
                    sources.append(last)
            return [turn, condition]
        given = given[node.op in BRANCHES :]
        values = [v for attribute in node.attr.values() for v in (attribute.func, *attribute.list.func)]
        return [self._body(value, given) for value in values if value.name in self.functions]

    def _body(self, called: Any, given: Sequence[list[tuple["_Body", str]]]) -> "_Body":
        function = self.functions[called.name]
        names = [argument.name for argument in function.signature.input_arg]
        return _Body(
            {inner.name: inner for inner in function.node_def},
            self.functions,
            {name: list(sources) for name, sources in zip(names, given, strict=True)},
            function.ret,
            [a.name for a in function.signature.output_arg],
        )

    def result(self, output: str) -> str:
        return self.results[self.outputs[int(output)]]


def _origins(body: _Body, name: str) -> Iterator[tuple[_Body, str]]:
    """What some indices are made of, behind ops that only hand them on: the bodies and names of tensors."""
    node, output = body.made(name)
    if node is None and len(body.arguments.get(name, ())) == 1:
        yield from _origins(*body.arguments[name][0])
    elif node is not None and node.op == "ConcatV2":
        for given in node.input[: node.attr["N"].i]:
            yield from _origins(body, given)
    elif node is not None and _passes(node):
        yield from _origins(body, node.input[0])
    elif node is not None and node.op == "IdentityN":
        yield from _origins(body, node.input[int(output)])
    elif node is not None and node.op in (*CALLS, *BRANCHES):
        for function in body.called(node):
            yield from _origins(function, function.result(output))
    else:
        yield body, name


def _passes(node: Any) -> bool:
    """Whether a node hands on its first input; of floats that become whole numbers two may become one."""
    if node.op == "Cast":
        return not tf.as_dtype(node.attr["SrcT"].type).is_floating
    return node.op in PASSES


def _distinct(body: _Body, name: str) -> bool:
    """Whether no value comes twice in a tensor, whatever it is made of."""
    node, output = body.made(name)
    if node is None:
        given = body.arguments.get(name, ())
        return len(given) == 1 and _distinct(*given[0])
    if node.op in CALLS:
        return all(_distinct(function, function.result(output)) for function in body.called(node))
    if node.op in UNIQUE:
        return output in FIRST and len(body.dims(name) or ()) == 1
    if node.op == "TopKV2" and output not in FIRST:  # places
        return len(body.dims(name) or ()) == 1
    if node.op == "Where":  # of a mask of one dim
        return (body.dims(name) or ())[1:] == [1]
    if node.op in GATHERS:
        return _distinct(body, node.input[0]) and _distinct(body, node.input[1])
    if node.op in SUMS:
        one, other = node.input[:2]
        return any(_distinct(body, a) and body.dims(b) == [] for a, b in ((one, other), (other, one)))
    kept = _passes(node) or node.op in CHOICES or node.op == "TopKV2"
    return node.op == "Range" or (kept and _distinct(body, node.input[0]))


def _folded(body: _Body, name: str) -> bool:
    """Whether a tensor, which is not distinct, has a row for each of some distinct values."""
    waiting, seen = [(body, name)], set()
    while waiting:
        body, name = waiting.pop()
        if (id(body), name) in seen:
            continue
        seen.add((id(body), name))
        node, output = body.made(name)
        if node is None:
            waiting += body.arguments.get(name, ())
        elif node.op in UNIQUE and output in FIRST:
            return True
        elif node.op in CALLS:
            waiting += [(function, function.result(output)) for function in body.called(node)]
        elif node.op not in (*SHAPES, "Where"):
            given = [name for name in node.input if not name.startswith("^")]
            given = given[1:2] if node.op in GATHERS else given
            waiting += [(body, other) for other in given if body.dims(other) != []]
    return False


def _differs(body: _Body, name: str, source: Source) -> tuple[bool, bool]:
    """Whether a tensor is another one for another slice of the same size, and if random numbers are in it."""
    waiting, seen, differs, drawn = [(body, name, False)], set(), False, False
    while waiting:
        body, name, of_shape = waiting.pop()
        if (id(body), name, of_shape) in seen:
            continue
        seen.add((id(body), name, of_shape))
        node, output = body.made(name)
        if node is None:
            waiting += [(*given, of_shape) for given in body.arguments.get(name, ())]
            continue
        drawn |= is_random(node, body.functions)
        differs |= _changes(node, of_shape, body, source)
        if node.op in (*CALLS, *BRANCHES):
            waiting += [(body, node.input[0], False)] if node.op in BRANCHES else []
            waiting += [(f, f.result(output), of_shape) for f in body.called(node)]
        elif node.op in LOOPS:
            turn, condition = body.called(node)
            waiting += [(turn, turn.result(output), of_shape), (condition, condition.result("0"), False)]
        else:
            looks = of_shape or node.op in SHAPES
            waiting += [(body, given, looks) for given in node.input if not given.startswith("^")]
    return differs, differs and drawn


def _changes(node: Any, of_shape: bool, body: _Body, source: Source) -> bool:
    """Whether what a node makes, or the shape of it, is another thing in itself for another slice."""
    if body.is_outermost and node.name in (source.shapes if of_shape else source.values):
        return True
    if of_shape and node.op in FILTERS:
        return True
    followed = node.op in (*CALLS, *BRANCHES, *LOOPS)  # into what they call
    return not followed and draws(node, body.functions)
