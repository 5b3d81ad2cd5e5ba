"""Numbers in the place of those that are drawn: each belongs to an example of the batch and a place in it.

So a slice has for its examples what the whole batch has for them, and examples differ from each other as they
do when numbers are drawn: a mask of numbers below a limit leaves out others in every slice. A number is made
of its place by whole numbers alone, so that the same place gives the same bits, however many there are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import tensorflow as tf

from colonnade.run.trace.concrete import concrete

# Of so many bits are the numbers that places are mixed to.
BITS = 32
# They keep so far from 0 and 1 that logarithms of them are numbers, in halves too.
EDGE = 0.005


@dataclass(frozen=True)
class DrawPlace:
    """Where in the draw of a whole batch that of a slice is.

    Args:
        axis: the dim of the examples; None where a slice draws as many as the whole batch.
        start: of the slice, in that dim.
        extent: of the whole batch, in that dim.
    """

    axis: int | None = None
    start: int = 0
    extent: int = 0


def places(whole: Sequence[int] | None, part: Sequence[int] | None, start: int, rows: int, total: int) -> Any:
    """Of one draw, told from its shapes in both traces: its places in the whole batch's and in the slice's.

    None where nothing tells, because no dim is that of the examples or several are. Where there are some
    numbers for each example, they may be side by side or not: first those of all generated images, then
    those of the real ones.
    """
    if whole is None or part is None or len(whole) != len(part):
        return None
    differ = [i for i, sizes in enumerate(zip(whole, part, strict=True)) if sizes[0] != sizes[1]]
    if not differ:
        return (
            None if -1 in whole else (DrawPlace(), DrawPlace())
        )  # of sizes that nobody knows, any may differ
    axis = differ[0]
    if len(differ) > 1 or (whole[axis], part[axis]) != (total, rows):
        return None
    return DrawPlace(axis, 0, total), DrawPlace(axis, start, total)


def written(
    node: Any,
    dims: str,
    kind: str,
    dtypes: tuple[int, int],
    place: DrawPlace,
    salt: int,
    limits: Sequence[str],
) -> Iterator[Any]:
    """The nodes, in the syntax of functions, that give a drawing node's numbers; the last one is the result.

    Args:
        node: that draws.
        dims: the output that is the shape of what it draws.
        kind: uniform, normal, gamma, coin, count, bits or whole.
        dtypes: of the numbers and of the shape.
        place: of the draw.
        salt: makes other numbers of the same places.
        limits: the inputs that are the smallest whole number, and the first one that is too large.
    """
    function = _numbers(kind, *dtypes, place.axis, len(limits)).function_def
    given = [dims, *limits]
    arguments = [argument.name for argument in function.signature.input_arg]
    constants = dict(zip(arguments[len(given) :], (place.start, place.extent, salt), strict=True))
    inputs = dict(zip(arguments, given, strict=False))
    prefix = f"{node.name}/by_place"
    for name, value in constants.items():
        inputs[name] = f"{prefix}/{name}:output:0"
        made = _node(f"{prefix}/{name}", "Const", node.device)
        made.attr["dtype"].type = tf.int64.as_datatype_enum
        made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, tf.int64))
        yield made
    for inner in function.node_def:
        made = _node(f"{prefix}/{inner.name}", inner.op, node.device)
        made.attr.MergeFrom(inner.attr)
        made.input.extend(inputs.get(name, f"{prefix}/{name}") for name in inner.input if name[0] != "^")
        yield made
    (result,) = function.ret.values()
    last = _node(node.name, "Identity", node.device)
    last.attr["T"].type = dtypes[0]
    last.input.extend([f"{prefix}/{result}", *(name for name in node.input if name[0] == "^")])
    yield last


def _node(name: str, op: str, device: str) -> Any:
    return tf.compat.v1.NodeDef(name=name, op=op, device=device)


@cache
def _numbers(kind: str, dtype: int, shape: int, axis: int | None, limits: int) -> Any:
    """The function of a shape, of limits, and of where the draw is."""
    dtypes = [tf.as_dtype(dtype)] * limits
    specs = [tf.TensorSpec([None], tf.as_dtype(shape)), *(tf.TensorSpec([], each) for each in dtypes)]

    def numbers(shape: Any, *more: Any) -> Any:
        *between, start, extent, salt = more
        uniform = _mixed(_ids(tf.cast(shape, tf.int64), axis, start, extent), salt)
        return _MADE[kind](uniform, tf.as_dtype(dtype), *between)

    return concrete(numbers, *specs, *[tf.TensorSpec([], tf.int64)] * 3)


def _ids(shape: Any, axis: int | None, start: Any, extent: Any) -> Any:
    """A number for each place in the draw of the whole batch."""
    if axis is None:
        return tf.reshape(tf.range(tf.reduce_prod(shape)), shape)
    outer, inner = tf.reduce_prod(shape[:axis]), tf.reduce_prod(shape[axis + 1 :])
    own = tf.range(shape[axis])[None, :, None] + start
    ids = (tf.range(outer)[:, None, None] * extent + own) * inner + tf.range(inner)[None, None, :]
    return tf.reshape(ids, shape)


def _mixed(ids: Any, salt: Any) -> Any:
    """A number between 0 and 1 for each, as if it were drawn."""
    bits = tf.constant(2**BITS - 1, tf.int64)
    mixed = tf.bitwise.bitwise_and(ids + salt * 1_000_003 + 12_345, bits)
    for factor in (73_244_475, 295_559_667):
        halves = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, tf.constant(16, tf.int64)))
        mixed = tf.bitwise.bitwise_and(halves * factor, bits)
    return EDGE + (1 - 2 * EDGE) * tf.cast(mixed, tf.float64) / 2**BITS


def _whole(uniform: Any, dtype: Any, low: Any, high: Any) -> Any:
    least, most = tf.cast(low, tf.float64), tf.cast(high, tf.float64)
    return tf.cast(tf.floor(least + uniform * (most - least)), dtype)


_MADE: dict[str, Callable[..., Any]] = {
    "uniform": tf.cast,
    # A number has the spread of one that is drawn, and no more than the largest that is likely.
    "normal": lambda uniform, dtype: tf.cast((uniform - 0.5) * 12**0.5, dtype),
    "gamma": lambda uniform, dtype: tf.cast(uniform + 0.1, dtype),
    "coin": lambda uniform, dtype: tf.cast(tf.round(uniform), dtype),
    "count": lambda uniform, dtype: tf.cast(tf.floor(3 * uniform), dtype),
    "bits": lambda uniform, dtype: tf.cast(tf.floor(2.0**31 * uniform), dtype),
    "whole": _whole,
}
