"""A trace in which random numbers are fixed, so that slices can be compared with the whole batch.

Several devices draw other numbers than one does, so nothing that is made of them can be held against one
device. With numbers that an example has by its place in the batch, a batch and its slices must be equal as if
nothing were drawn; where nobody can tell the place, it is one number for all. And what prints can be run once
more without anybody hearing it. Both are done in the graph: nothing of the user's is traced once more.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import count
from typing import Any, TypeVar
from weakref import WeakSet

import tensorflow as tf

from colonnade.run.prove.drawn_shape import CATEGORIES, SHAPED_BY_OTHERS, shape_of_drawn
from colonnade.run.prove.numbers_by_place import DrawPlace, places, written
from colonnade.run.trace.captures import LOOPS
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.traced import Traced

T = TypeVar("T", bound=Traced)
# Where something is drawn: the name of a function, or None, and that of a node in it.
Draw = tuple[str | None, str]
_NUMBERS = count()  # of functions that were changed
_FIXED: WeakSet[Traced] = WeakSet()

# Such a number lets dropout keep everything, whatever its rate.
UNIFORM, NORMAL = 0.995, 0.6
# By op: the attributes for the dtypes of its numbers and of its first input, their shape; and the number.
DRAWN = {
    "StatelessRandomUniformV2": ("dtype", "Tshape", UNIFORM),
    "StatelessRandomNormalV2": ("dtype", "Tshape", NORMAL),
    "StatelessTruncatedNormalV2": ("dtype", "Tshape", NORMAL),
    "StatelessRandomUniform": ("dtype", "T", UNIFORM),
    "StatelessRandomNormal": ("dtype", "T", NORMAL),
    "StatelessTruncatedNormal": ("dtype", "T", NORMAL),
    "RandomUniform": ("dtype", "T", UNIFORM),
    "RandomStandardNormal": ("dtype", "T", NORMAL),
    "TruncatedNormal": ("dtype", "T", NORMAL),
    "StatelessRandomBinomial": ("dtype", "S", 1.0),
    "StatelessRandomGammaV2": ("dtype", "T", NORMAL),
    "StatelessRandomGammaV3": ("dtype", "shape_dtype", NORMAL),
    "StatelessParameterizedTruncatedNormal": ("dtype", "S", NORMAL),
    "StatelessRandomPoisson": ("dtype", "T", 1),
    "StatelessRandomUniformFullIntV2": ("dtype", "Tshape", 1),
    "StatelessRandomUniformFullInt": ("dtype", "T", 1),
    # The shapes of these are made of several inputs (see `drawn_shape`).
    "RandomPoissonV2": ("dtype", "S", 1),
    "RandomGamma": ("T", "S", NORMAL),
    "Multinomial": ("output_dtype", "", 0),
    "StatelessMultinomial": ("output_dtype", "", 0),
}
# Whole numbers become the smallest that may be drawn: the place of that among the inputs.
DRAWN_WHOLE = {
    "StatelessRandomUniformIntV2": ("dtype", "Tshape", 4),
    "StatelessRandomUniformInt": ("dtype", "T", 2),
    "RandomUniformInt": ("Tout", "T", 1),
}
# By what is in the name of an op: numbers by place that are like those that it draws; others are uniform.
KINDS = (
    ("Binomial", "coin"),
    ("Gamma", "gamma"),
    ("Normal", "normal"),
    ("Poisson", "count"),
    ("FullInt", "bits"),
)
# These have one number for all: what they may draw is said by their inputs, and that one is not far off.
OF_ONE_NUMBER = (*CATEGORIES, "StatelessParameterizedTruncatedNormal")
SHUFFLED = ("RandomShuffle", "StatelessShuffle")
HEARD = ("PrintV2", "WriteSummary", "WriteScalarSummary", "WriteRawProtoSummary")
NUMBER = "colonnade_fixed_number"


def with_fixed_draws(traced: T, known: Mapping[Draw, DrawPlace] | None = None, salt: int = 0) -> T:
    """The same trace, with a fixed number for every one that it draws outside of loops.

    A loop may go on until it has drawn a number that it likes, so what is drawn in one stays random.

    Args:
        traced: the trace.
        known: the places of draws in that of the whole batch; what is drawn elsewhere is one number for all.
        salt: makes other numbers of the same places.
    """
    made = _with_others(traced, partial(_exchanged, known=known or {}, salt=salt), in_loops=False)
    _FIXED.add(made)
    return made


def is_fixed(traced: Traced) -> bool:
    """Whether numbers are fixed in a trace; what is left of random generators are their states, unread."""
    return traced in _FIXED


def with_numbers_by_place(
    whole: T, parts: Sequence[T], counts: Sequence[int], salt: int = 0
) -> tuple[T, list[T]]:
    """The traces of a batch and of its slices, with the same numbers for the same examples."""
    drawn, total = _draws(whole), sum(counts)
    of_whole: dict[Draw, DrawPlace] = {}
    of_parts: list[dict[Draw, DrawPlace]] = []
    for i, part in enumerate(parts):
        found, own = _draws(part), dict[Draw, DrawPlace]()
        # One line of code draws in both traces, and they were made one after the other in both.
        if [op for _, op, _ in found] == [op for _, op, _ in drawn]:
            start = sum(counts[:i])
            for (here, _, one), (there, _, other) in zip(drawn, found, strict=True):
                both = places(one, other, start, counts[i], total)
                if both is not None and of_whole.setdefault(here, both[0]) == both[0]:
                    own[there] = both[1]
        of_parts.append(own)
    # Numbers by place are of use where all slices have them.
    names = [draw for draw, _, _ in drawn]
    every = [n for n, place in enumerate(names) if place in of_whole]
    if any(len(own) != len(every) for own in of_parts):
        of_whole, of_parts = {}, [{} for _ in parts]
    fixed = with_fixed_draws(whole, of_whole, salt)
    made: dict[Any, T] = {}
    for part, own in zip(parts, of_parts, strict=True):
        key = id(part), tuple(own.values())
        if key not in made:
            made[key] = with_fixed_draws(part, own, salt)
    return fixed, [made[id(part), tuple(own.values())] for part, own in zip(parts, of_parts, strict=True)]


def muted(traced: T) -> T:
    """The same trace, which prints nothing and writes no summaries."""
    return _with_others(traced, _silenced, in_loops=True)


def _with_others(traced: T, exchange: Callable[..., bool], *, in_loops: bool) -> T:
    other: Any = copy(traced)
    other.concrete, other.functions_of_others = _of_other_nodes(traced.concrete, exchange, in_loops)
    made: T = other
    return made


def _of_other_nodes(traced: Any, exchange: Callable[..., bool], in_loops: bool) -> tuple[Any, Any]:
    """The function of a graph in which nodes are exchanged, and what keeps the functions that it calls."""
    definition = traced.graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    looped = set() if in_loops else set(_looped(definition, functions))
    inner = [(function.node_def, name) for name, function in functions.items() if name not in looped]
    renamed = True in [exchange(nodes, name) for nodes, name in inner]
    if renamed:
        # TensorFlow knows functions by their names, and these are others now.
        suffix = f"{next(_NUMBERS)}_{NUMBER}"
        _rename(definition, {name: f"{name}_{suffix}" for name in functions})
    exchange(definition.node, None)
    names, outputs = [t.op.name for t in traced.inputs], [t.name for t in traced.outputs]
    known = {t.name: t.shape for op in traced.graph.get_operations() for t in op.outputs}

    def imported(*tensors: Any) -> Any:
        given = {f"{name}:0": tensor for name, tensor in zip(names, tensors, strict=True)}
        results = tf.graph_util.import_graph_def(
            definition, input_map=given, return_elements=outputs, name=""
        )
        graph = tf.compat.v1.get_default_graph()
        for name, shape in known.items():  # what the handle of a variable tells is not in a definition
            graph.get_tensor_by_name(name).set_shape(shape)
        return results

    specs = [tf.TensorSpec(t.shape, t.dtype, name=f"{NUMBER}_{i}") for i, t in enumerate(traced.inputs)]
    with tf.init_scope():
        # A tf.function does not make known what comes with an imported graph, and such a function does.
        known_by = tf.compat.v1.wrap_function(imported, specs) if renamed else None
        return concrete(imported, *specs), known_by


def _draws(traced: Any) -> list[tuple[Draw, str, tuple[int, ...] | None]]:
    """What a trace draws, in the order of its code: where, by which op, of what shape if known."""
    definition = traced.concrete.graph.as_graph_def(add_shapes=True)
    functions = {function.signature.name: function for function in definition.library.function}
    found, seen = [], set[str]()

    def search(nodes: Any, function: str | None) -> None:
        for node in nodes:
            if node.op in DRAWN or node.op in DRAWN_WHOLE:
                found.append(((function, node.name), node.op, _shape(node)))
            for name in _called(node):
                if name in functions and name not in seen:
                    seen.add(name)
                    search(functions[name].node_def, name)

    search(definition.node, None)
    return found


def _shape(node: Any) -> tuple[int, ...] | None:
    """Of what is drawn, where it is known and numbers by place may be taken."""
    shapes = node.attr["_output_shapes"].list.shape
    if node.op in OF_ONE_NUMBER or not shapes or shapes[0].unknown_rank:
        return None
    return tuple(dim.size for dim in shapes[0].dim)


def _looped(definition: Any, functions: Mapping[str, Any]) -> Iterator[str]:
    """The functions that a loop calls, and those that they call."""
    everything = [definition.node, *(function.node_def for function in functions.values())]
    waiting = [name for nodes in everything for n in nodes if n.op in LOOPS for name in _called(n)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in functions and name not in seen:
            seen.add(name)
            yield name
            waiting += [other for node in functions[name].node_def for other in _called(node)]


def _called(node: Any) -> Iterator[str]:
    yield node.op  # a call may be an op of the function's name
    for value in node.attr.values():
        yield from (one.name for one in (value.func, *value.list.func) if one.name)


def _exchanged(nodes: Any, function: str | None, known: Mapping[Draw, DrawPlace], salt: int) -> bool:
    """Exchange the nodes that draw; whether there were any."""
    exchanged = False
    for node in list(nodes):
        if node.op in SHUFFLED:
            _become(node, "Identity", node.input[:1], {"T": node.attr["T"].type})
        elif node.op in DRAWN or node.op in DRAWN_WHOLE:
            place = known.get((function, node.name))
            if place is None:
                _exchange_for_one(nodes, node, of_function=function is not None)
            else:
                _exchange_by_place(nodes, node, place, salt, of_function=function is not None)
        else:
            continue
        exchanged = True
    return exchanged


def _exchange_by_place(nodes: Any, node: Any, place: DrawPlace, salt: int, *, of_function: bool) -> None:
    dtype, shape, last = {**DRAWN, **DRAWN_WHOLE}[node.op]
    kind = "whole" if node.op in DRAWN_WHOLE else next((k for name, k in KINDS if name in node.op), "uniform")
    limits = [node.input[last], node.input[last + 1]] if kind == "whole" else []
    dims, index = _dims(nodes, node, shape, of_function=of_function)
    for made in written(node, dims, kind, (node.attr[dtype].type, index), place, salt, limits):
        if not of_function:  # there, outputs have no names
            made.input[:] = [re.sub(r":[a-z_]\w*:", ":", name) for name in made.input]
        if made.name == node.name:
            node.CopyFrom(made)
        else:
            nodes.add().CopyFrom(made)


def _exchange_for_one(nodes: Any, node: Any, *, of_function: bool) -> None:
    if node.op in DRAWN:
        dtype, shape, number = DRAWN[node.op]
        value = nodes.add(name=f"{node.name}/{NUMBER}", op="Const", device=node.device)
        value.attr["dtype"].type = node.attr[dtype].type
        proto = tf.make_tensor_proto(number, tf.as_dtype(node.attr[dtype].type))
        value.attr["value"].tensor.CopyFrom(proto)
        source = f"{value.name}:output:0" if of_function else value.name
    else:
        dtype, shape, place = DRAWN_WHOLE[node.op]
        source = node.input[place]
    dims, index = _dims(nodes, node, shape, of_function=of_function)
    _become(node, "Fill", [dims, source], {"T": node.attr[dtype].type, "index_type": index})


def _dims(nodes: Any, node: Any, shape: str, *, of_function: bool) -> tuple[str, int]:
    """The output that is the shape of what a node draws, and its dtype."""
    if node.op in SHAPED_BY_OTHERS:
        return shape_of_drawn(nodes, node, of_function=of_function)
    return node.input[0], node.attr[shape].type


def _silenced(nodes: Any, _function: str | None) -> bool:
    """Exchange the nodes that a person hears; whether there were any."""
    heard = [node for node in nodes if node.op in HEARD]
    for node in heard:
        _become(node, "NoOp", [], {})
    return bool(heard)


def _become(node: Any, op: str, inputs: Any, kinds: Mapping[str, int]) -> None:
    """Another op under the same name, after what the node waited for."""
    waits, inputs = [name for name in node.input if name.startswith("^")], list(inputs)
    node.op, node.input[:] = op, [*inputs, *waits]
    node.attr.clear()
    for name, kind in kinds.items():
        node.attr[name].type = kind


def _rename(definition: Any, names: Mapping[str, str]) -> None:
    """Other names for the functions of a graph, wherever they are called."""
    for function in definition.library.function:
        function.signature.name = names[function.signature.name]
    for gradient in definition.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    for nodes in [definition.node, *(function.node_def for function in definition.library.function)]:
        for node in nodes:
            node.op = names.get(node.op, node.op)
            for value in node.attr.values():
                for one in (value.func, *value.list.func):
                    if one.name in names:
                        one.name = names[one.name]
