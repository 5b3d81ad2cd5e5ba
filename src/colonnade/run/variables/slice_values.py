"""What a trace computes from its slice alone, and what is the same on every replica."""

from collections.abc import Container, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from colonnade.run.trace.captures import Capture, descendants
from colonnade.run.trace.ops import draws
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import reached
from colonnade.run.variables.aggregation import is_random_state


def local_variables(traced: Traced) -> list[tf.Variable]:
    """Variables into which a trace writes what depends on its slice other than through sums."""
    of_slice = tainted(traced)
    return [capture.variable for capture, _ in handles(traced) if is_local(capture, of_slice)]


def counters(traced: Traced) -> list[tf.Variable]:
    """Variables into which a trace writes what no value of a batch is in, such as the number of examples."""
    left = [(capture, handle) for capture, handle in handles(traced) if capture.written]
    inputs = traced.concrete.inputs
    sources = [tensor.op for tensor in inputs[: len(inputs) - len(traced.captures)]]
    while True:
        of_batch = descendants(*sources)
        given = [handle for capture, handle in left if is_local(capture, of_batch)]
        if not given:
            return [capture.variable for capture, _ in left]
        sources += given
        left = [(capture, handle) for capture, handle in left if handle not in given]


def local_outputs(traced: Traced) -> list[bool]:
    """For each output of a trace whether it is of the slice."""
    of_slice = tainted(traced)
    return [output.op.name in of_slice for output in traced.outputs]


# What makes the mean of slices from what is made of their means; of a quotient only what is divided.
LINEAR = ("AddV2", "Add", "AddN", "Sub", "Neg", "Identity", "Cast", "Reshape", "Squeeze", "Mul", "RealDiv")
# What does not, where it is not the same for all slices.
BENDS = ("Minimum", "Maximum", "ClipByValue", "Relu", "Relu6", "Sign", "Round", "Rint", "Floor", "SelectV2")


def bent(traced: Traced, but: Container[Any] = ()) -> list[tuple[tf.Variable, str]]:
    """Floats that are given what a slice's mean is bent to, such as a number between bounds, and by which op.

    As long as no slice reaches a bound, or all do, the mean of the slices is that of the batch. `but` are the
    refs of variables that are not asked for.
    """
    if not any(v.dtype.is_floating and v.ref() not in but for v in traced.written):
        return []
    of_slice = tainted(traced)
    found = []
    for capture, handle in handles(traced):
        variable = capture.variable
        asked = variable.dtype.is_floating and variable.ref() not in but and is_local(capture, of_slice)
        writers = [handle.graph.get_operation_by_name(name) for name in capture.writers] if asked else []
        given = [tensor.op for op in writers for tensor in op.inputs[1:]]
        found += [(variable, op) for op in dict.fromkeys(_bending(given, of_slice))]
    return found


def _bending(ops: list[Any], of_slice: Container[str]) -> Iterator[str]:
    """The types of ops that bend what is of a slice, behind which there is nothing but linear ones."""
    seen, waiting = set[str](), list(ops)
    while waiting:
        op = waiting.pop()
        if op.name in seen or op.name not in of_slice:
            continue
        seen.add(op.name)
        if op.type in BENDS:
            yield str(op.type)
        elif op.type in LINEAR:
            inputs = list(op.inputs)
            waiting += [tensor.op for tensor in (inputs[:1] if op.type == "RealDiv" else inputs)]


def tainted(traced: Traced) -> set[str]:
    """The nodes whose values are of the slice: made from it, from random numbers, or from such variables."""
    if traced not in _TAINTED:
        _TAINTED[traced] = _of_slice(traced)
    return _TAINTED[traced]


# A trace does not change, and several replicas ask for the same one; what was found goes with the trace.
_TAINTED: WeakKeyDictionary[Traced, set[str]] = WeakKeyDictionary()


def _of_slice(traced: Traced) -> set[str]:
    inputs = traced.concrete.inputs
    batch = {tensor.op.name for tensor in inputs[: len(inputs) - len(traced.captures)]}
    known = handles(traced)
    sources = batch | {op.name for capture, op in known if is_random_state(capture)}
    graph = traced.concrete.graph.as_graph_def()
    functions = {function.signature.name: function for function in graph.library.function}
    sources |= {node.name for node in graph.node if draws(node, functions)}
    while True:
        of_slice = reached(sources, traced)
        more = {op.name for capture, op in known if op.name not in sources and is_local(capture, of_slice)}
        if not more:
            return of_slice
        sources |= more


def is_local(capture: Capture, of_slice: Container[str]) -> bool:
    """Whether something of the slice is written to a variable."""
    return any(name in of_slice for name in capture.writers)


def handles(traced: Traced) -> list[tuple[Capture, Any]]:
    """The variables that a trace captures, each with the op that stands for its handle in it."""
    inputs = traced.concrete.inputs
    placeholders = inputs[len(inputs) - len(traced.captures) :]
    pairs = zip(traced.captures, placeholders, strict=True)
    return [(capture, tensor.op) for capture, tensor in pairs if capture.variable is not None]
