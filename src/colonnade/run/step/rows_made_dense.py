"""Cuts an update in two where the rows of sparse gradients become as large as their tables.

Most optimizers move a whole table in every step, whatever few rows the batch had: they make a table of the
rows, and of their squares, and go on with these. What comes before is for TensorFlow, because the number of
rows may be another one in every step. What comes after has fixed sizes, and XLA makes one loop of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.run.step.xla import PLAIN
from colonnade.run.trace.captures import ancestors
from colonnade.run.trace.concrete import concrete

# What may come before: it depends on nothing but the gradients.
BEFORE = PLAIN | {"Reshape", "Shape", "StridedSlice", "UnsortedSegmentSum"}
GIVEN = "Placeholder"


@dataclass(frozen=True)
class CutUpdate:
    """Two concrete functions that do what an update did.

    Args:
        before: from the components of all gradients to the arguments of `after`.
        after: takes the gate, what `before` gives, and the handles; it gives what the update gives.
    """

    before: Any
    after: Any


def cut_update(update: Any, num_components: int, known: Mapping[int, Sequence[int]]) -> CutUpdate | None:
    """An update in two, or None if it reads or writes a variable before all is as large as its table.

    Args:
        update: a concrete function of a gate, the components of gradients, and handles.
        num_components: how many there are of them.
        known: by the number of a component, what it is always: the shapes of tables.
    """
    gate, *inputs = update.inputs
    components, handles = inputs[:num_components], inputs[num_components:]
    ops = update.graph.get_operations()
    graph = _told(update, known)
    loose = [op for op in ops if op.type != GIVEN and not _fixed(op, graph)]
    first = {op.name: op for op in ancestors(*loose) if op.type != GIVEN}
    given = {tensor.op.name for tensor in (gate, *components)}
    if not first or not all(_alone(op, first, given) for op in first.values()):
        return None
    later = [op for op in ops if op.type != GIVEN and (op.name not in first or op.type == "Const")]
    own = {op.name for op in later}
    taken = [tensor for op in later for tensor in op.inputs if tensor.op.name not in own]
    handed = list({t.name: t for t in taken if t.dtype != tf.resource and t.op.name != gate.op.name}.values())

    def before(*args: Any) -> list[Any]:
        values = [tf.constant(known[i], a.dtype) if i in known else a for i, a in enumerate(args)]
        mapped = {tensor.name: value for tensor, value in zip(components, values, strict=True)}
        made = _imported(update.graph, first, mapped, [t.name for t in handed if t.name not in mapped])
        return [mapped[t.name] if t.name in mapped else made.pop(0) for t in handed]

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in components]
    rows = concrete(before, *specs)

    def after(gate_given: Any, *args: Any) -> Any:
        names = [tensor.name for tensor in (*handed, *handles)]
        mapped = dict(zip(names, args, strict=True)) | {f"^{gate.op.name}": gate_given}
        return _imported(update.graph, own, mapped, [update.outputs[0].name])[0]

    arrived = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in rows.outputs]
    bound = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in handles]
    return CutUpdate(rows, concrete(after, tf.TensorSpec([], gate.dtype), *arrived, *bound))


def _told(update: Any, known: Mapping[int, Sequence[int]]) -> Any:
    """The graph of an update with the shapes of tables as constants: its ops then know what they make."""
    gate, *inputs = update.inputs

    def same(*args: Any) -> Any:
        mapped = {tensor.name: value for tensor, value in zip((gate, *inputs), args, strict=True)}
        mapped |= {inputs[i].name: tf.constant(shape, inputs[i].dtype) for i, shape in known.items()}
        mapped[f"^{gate.op.name}"] = args[0]
        names = {op.name for op in update.graph.get_operations() if op.type != GIVEN}
        return _imported(update.graph, names, mapped, [update.outputs[0].name])[0]

    return concrete(same, *(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in update.inputs)).graph


def _fixed(op: Any, graph: Any) -> bool:
    """Whether XLA may have it: plain arithmetic on what is of one size in every step.

    Variables tell their shapes where the update was traced, and rows that have become a table in `told`.
    """

    def known(tensor: Any) -> bool:
        if tensor.shape.is_fully_defined():
            return True
        given = tensor.op.type == GIVEN
        return not given and graph.get_tensor_by_name(tensor.name).shape.is_fully_defined()

    return op.type in PLAIN and all(known(tensor) for tensor in (*op.inputs, *op.outputs))


def _alone(op: Any, others: Mapping[str, Any], given: set[str]) -> bool:
    """Whether an op needs the gradients and such ops only, and so may run before all the rest."""
    waits = {before.name for before in op.control_inputs}
    handles = any(tensor.dtype == tf.resource for tensor in op.inputs)
    return op.type in BEFORE and not handles and waits <= given | set(others)


def _imported(graph: Any, names: Any, mapped: Mapping[str, Any], wanted: Sequence[str]) -> list[Any]:
    """A part of a graph once more, in the graph that is being made."""
    if not wanted:
        return []
    whole = graph.as_graph_def()
    part = tf.compat.v1.GraphDef(library=whole.library, versions=whole.versions)
    kept = {*names, *(name.removeprefix("^") for name in mapped if name.startswith("^"))}
    for node in whole.node:
        if node.name in names:
            added = part.node.add()
            added.CopyFrom(node)
            # What is not here is over by then.
            waits = [name for name in node.input if name.startswith("^") and name[1:] in kept]
            added.input[:] = [name for name in node.input if not name.startswith("^")] + waits
    # An input is `^x`, `x:1`, or for its first output `x`.
    taken = {n if n[0] == "^" or ":" in n else f"{n}:0" for node in part.node for n in node.input}
    used = {name: value for name, value in mapped.items() if name in taken}
    return list(tf.graph_util.import_graph_def(part, input_map=used, return_elements=list(wanted), name=""))
