"""Lets graphs with cuDNN's recurrent layers be run on zeros where there is no card.

On cards Keras makes one op of an LSTM or a GRU, which no processor can compute. Ops that give results of the
same shapes take its place: what comes in and goes out is counted, and what cuDNN takes for itself is not.
"""

import warnings
from typing import Any

import tensorflow as tf

FORWARD, BACKWARD = "CudnnRNNV3", "CudnnRNNBackpropV3"
LEFT_OUT = "The estimate leaves out what cuDNN takes for itself in recurrent layers: on cards it is more."


def warn(graph: Any) -> None:
    """Say what an estimate of such a graph leaves out, if anything."""
    if any(node.op in (FORWARD, BACKWARD) for node in graph.node):
        warnings.warn(LEFT_OUT, stacklevel=2)


def replaced(graph: Any) -> Any:
    """The graph with stand-ins for these ops.

    Forward they take `input [time, batch, in]`, `h [1, batch, units]`, `c` and the weights, and give
    `[time, batch, units]`, `h`, `c` and what the way back needs; backward, what is like the first four.
    """
    for node in list(graph.node):
        if node.op == FORWARD:
            _stand_in(graph, node)
        elif node.op == BACKWARD:
            _handed_on(node, list(node.input[:4]), [node.attr["T"].type] * 4)
    return graph


def _stand_in(graph: Any, node: Any) -> None:
    number, prefix = node.attr["T"].type, f"{node.name}/stand_in"
    inputs, device = list(node.input[:4]), node.device

    def add(name: str, op: str, *sources: str, **attributes: Any) -> str:
        added = graph.node.add(name=f"{prefix}/{name}", op=op, input=sources, device=device)
        for key, value in attributes.items():
            added.attr[key].CopyFrom(value)
        return f"{prefix}/{name}"

    axis = add("axis", "Const", dtype=_type(tf.int32), value=_tensor([2], tf.int32))
    kinds = {"T": _type(number), "Tidx": _type(tf.int32)}
    flat = add("sum", "Sum", inputs[0], axis, **kinds, keep_dims=tf.compat.v1.AttrValue(b=True))
    output = add("output", "AddV2", flat, inputs[1], T=_type(number))
    host = add("host", "Const", dtype=_type(tf.int8), value=_tensor([0], tf.int8))
    handed = [output, inputs[1], inputs[2], inputs[3], host]
    _handed_on(node, handed, [number] * 4 + [tf.int8.as_datatype_enum])


def _handed_on(node: Any, inputs: list[str], types: list[int]) -> None:
    """Make a node one that puts out what it is given."""
    waits = [name for name in node.input if name.startswith("^")]
    node.op = "IdentityN"
    node.input[:] = [*inputs, *waits]
    node.attr.clear()
    node.attr["T"].list.type.extend(types)


def _type(dtype: Any) -> Any:
    return tf.compat.v1.AttrValue(type=tf.as_dtype(dtype).as_datatype_enum)


def _tensor(value: Any, dtype: Any) -> Any:
    return tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(value, dtype))
