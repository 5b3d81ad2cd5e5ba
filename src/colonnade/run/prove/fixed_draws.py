"""A trace in which random numbers are fixed, the same for every example, so that slices can be compared.

Several devices draw other numbers than one does, so nothing that is made of them can be held against one
device. With a number that never changes in the place of each one that is drawn, a batch and its slices must
be equal as if nothing were drawn. And what prints can be run once more without anybody hearing it. Both are
done in the graph: nothing of the user's is traced once more.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, TypeVar

import tensorflow as tf

from colonnade.run.prove.drawn_shape import SHAPED_BY_OTHERS, shape_of_drawn
from colonnade.run.trace.captures import LOOPS
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.traced import Traced

T = TypeVar("T", bound=Traced)

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
SHUFFLED = ("RandomShuffle", "StatelessShuffle")
HEARD = ("PrintV2", "WriteSummary", "WriteScalarSummary", "WriteRawProtoSummary")
NUMBER = "colonnade_fixed_number"


def with_fixed_draws(traced: T) -> T:
    """The same trace, with a fixed number for every one that it draws outside of loops.

    A loop may go on until it has drawn a number that it likes, so what is drawn in one stays random.
    """
    return _with_others(traced, _exchanged, in_loops=False)


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
    inner = [function.node_def for name, function in functions.items() if name not in looped]
    renamed = True in [exchange(nodes, of_function=True) for nodes in inner]
    if renamed:
        # TensorFlow knows functions by their names, and these are others now.
        suffix = f"{exchange.__name__}_{NUMBER}"
        _rename(definition, {name: f"{name}_{suffix}" for name in functions})
    exchange(definition.node, of_function=False)
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


def _exchanged(nodes: Any, *, of_function: bool) -> bool:
    """Exchange the nodes that draw; whether there were any."""
    exchanged = False
    for node in list(nodes):
        if node.op in SHUFFLED:
            _become(node, "Identity", node.input[:1], {"T": node.attr["T"].type})
        elif node.op in DRAWN:
            dtype, shape, number = DRAWN[node.op]
            value = nodes.add(name=f"{node.name}/{NUMBER}", op="Const", device=node.device)
            value.attr["dtype"].type = node.attr[dtype].type
            proto = tf.make_tensor_proto(number, tf.as_dtype(node.attr[dtype].type))
            value.attr["value"].tensor.CopyFrom(proto)
            source = f"{value.name}:output:0" if of_function else value.name
            dims, index = node.input[0], node.attr[shape].type
            if node.op in SHAPED_BY_OTHERS:
                dims, index = shape_of_drawn(nodes, node, of_function=of_function)
            kinds = {"T": node.attr[dtype].type, "index_type": index}
            _become(node, "Fill", [dims, source], kinds)
        elif node.op in DRAWN_WHOLE:
            dtype, shape, place = DRAWN_WHOLE[node.op]
            kinds = {"T": node.attr[dtype].type, "index_type": node.attr[shape].type}
            _become(node, "Fill", [node.input[0], node.input[place]], kinds)
        else:
            continue
        exchanged = True
    return exchanged


def _silenced(nodes: Any, *, of_function: bool) -> bool:
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
