"""The shape of what an op draws, where no input is that: of categories, and of numbers for each rate."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

CATEGORIES = ("Multinomial", "StatelessMultinomial")
FOR_EACH_RATE = ("RandomPoissonV2", "RandomGamma")
SHAPED_BY_OTHERS = (*CATEGORIES, *FOR_EACH_RATE)
INT = tf.int32.as_datatype_enum


def shape_of_drawn(nodes: Any, node: Any, *, of_function: bool) -> tuple[str, int]:
    """Add nodes that compute it: the last one's output, as an input of others has it, and its dtype."""

    def output(name: str) -> str:
        return f"{name}:output:0" if of_function else name

    def added(name: str, op: str, inputs: Sequence[str], **kinds: int) -> Any:
        made = nodes.add(name=f"{node.name}/shape/{name}", op=op, device=node.device)
        made.input.extend(inputs)
        for key, kind in kinds.items():
            made.attr[key].type = kind
        return made

    def constant(name: str, value: Any) -> str:
        made = added(name, "Const", [], dtype=INT)
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int32))
        return output(made.name)

    if node.op in CATEGORIES:  # so many for each row of logits
        known = added("logits", "Shape", [node.input[0]], T=node.attr["T"].type, out_type=INT)
        first, second = constant("first", [0]), constant("second", [1])
        kinds = {"T": INT, "Index": INT}
        rows = added("rows", "StridedSlice", [output(known.name), first, second, second], **kinds)
        rows.attr["shrink_axis_mask"].i = 1
        whole = added("whole", "Pack", [output(rows.name), node.input[1]], T=INT)
        whole.attr["N"].i = 2
        return output(whole.name), INT
    kind, rates = node.attr["S"].type, node.attr["T" if node.op == "RandomGamma" else "R"].type
    each = added("rates", "Shape", [node.input[1]], T=rates, out_type=kind)
    inputs = [node.input[0], output(each.name), constant("axis", 0)]
    whole = added("whole", "ConcatV2", inputs, T=kind, Tidx=INT)
    whole.attr["N"].i = 2
    return output(whole.name), kind
