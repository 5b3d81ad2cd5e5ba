"""The loss of a whole batch, computed by replicas that each have a slice: predictions are put together first.

Most losses are means over examples, so that those of slices make that of the batch. Others are not: sums,
masks, quotients, comparisons of examples with each other. For those every replica gets the predictions of
all, and computes the one loss; the gradient goes back to the slice that a prediction came from. What layers
add in their call (`add_loss`) is of the slice, a mean or a sum over it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.trace.concrete import unconverted

MEAN, SUM = "mean", "sum"


def gathered(value: Any, positions: Any, total: int) -> Any:
    """A value per example of a slice as one per example of the batch; `positions` are those of the slice."""
    if value is None:
        return None
    if not isinstance(value, tf.Tensor) or value.dtype == tf.string:
        rule = "must be numbers in a dense tensor, for its loss is that of the whole batch"
        fix = "Train on one device: devices=1"
        raise InvalidArgument("fit()", [Problem("output of the model", type(value).__name__, rule, fix)])
    numbers = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
    shape = tf.concat([[total], tf.shape(value)[1:]], axis=0)
    placed = tf.scatter_nd(positions[:, None], numbers, shape)
    placed.set_shape([total, *value.shape[1:]])
    context = tf.distribute.get_replica_context()
    return tf.cast(context.all_reduce(tf.distribute.ReduceOp.SUM, placed), value.dtype)


def masks_of(prediction: Any) -> dict[str, Any]:
    """The masks that Keras leaves on outputs, by their number; what is masked does not count in a loss."""
    masks = [getattr(output, "_keras_mask", None) for output in tf.nest.flatten(prediction)]
    return {str(i): mask for i, mask in enumerate(masks) if mask is not None}


def with_masks(prediction: Any, masks: Mapping[str, Any]) -> Any:
    """Outputs that were put together, with the masks on them that their parts had."""
    outputs = tf.nest.flatten(prediction)
    for number, mask in masks.items():
        outputs[int(number)]._keras_mask = mask
    return prediction


def put_together(prediction: Any, masks: Mapping[str, Any], positions: Any, total: int) -> Any:
    """The outputs of a whole batch, with the masks on them, from those of the slice at hand."""
    whole = tf.nest.map_structure(lambda p: gathered(p, positions, total), prediction)
    return with_masks(whole, {i: gathered(m, positions, total) for i, m in masks.items()})


class AddedLosses:
    """A scope in which `add_loss` of layers is noted, and adds what counts right in the mean over slices.

    Args:
        kinds: by layer and number of its call, whether it adds a mean or a sum over the slice; where that is
            not known, a number is a mean, and one value per example a sum.
        adds: whether layers get to add anything, or it is only noted.
    """

    def __init__(self, kinds: Mapping[tuple[str, int], str] | None = None, *, adds: bool = True) -> None:
        self.kinds, self._adds = dict(kinds or {}), adds
        self.values: list[Any] = []  # the loss of each call
        self.layers: list[Any] = []  # the layer of each call
        # Its name, and how often one of that name has added something before.
        self.calls: list[tuple[str, int]] = []
        self.zeros: list[bool] = []  # whether it adds 0, whatever the batch is
        self._graph: Any = None

    @contextmanager
    def noted(self, rows: int, total: int) -> Iterator["AddedLosses"]:
        """While a model is called on a slice of so many rows, of a batch of `total`."""
        self.values, self.layers, self.calls, self.zeros = [], [], [], []
        self._graph = tf.compat.v1.get_default_graph()
        original = keras.layers.Layer.add_loss

        def add_loss(layer: Any, loss: Any) -> None:
            # Keras calls layers in graphs of its own too, only to see shapes.
            if tf.compat.v1.get_default_graph() is not self._graph:
                original(layer, loss)
                return
            for one in tf.nest.flatten(loss):
                value = self._added(layer, one, total / rows)
                if self._adds:
                    original(layer, value)

        keras.layers.Layer.add_loss = unconverted(add_loss)
        try:
            yield self
        finally:
            keras.layers.Layer.add_loss = original

    def _added(self, layer: Any, loss: Any, factor: float) -> Any:
        # Layers in parts of a model may have the same name; in all traces they come in the same order.
        call = layer.name, sum(other.name == layer.name for other in self.layers)
        self.layers.append(layer)
        self.calls.append(call)
        self.zeros.append(is_zero(loss))
        # One value per example, which Keras adds up.
        several = loss.shape.rank != 0
        value = tf.reduce_sum(loss) if several else loss
        self.values.append(tf.stop_gradient(tf.cast(value, tf.float64)))
        kind = self.kinds.setdefault(call, SUM if several else MEAN)
        return value * tf.constant(factor, value.dtype) if kind == SUM else value


# What gives 0 where its first input is 0, or where one of two is.
PASSING = ("Identity", "Cast", "Neg", "Sum", "Mean", "Reshape", "StopGradient", "Abs", "Square", "DivNoNan")
PRODUCTS = ("Mul", "MulNoNan")
SUMS = ("AddV2", "Add", "AddN", "Sub")


def is_zero(tensor: Any) -> bool:
    """Whether a trace knows that something is 0, such as a regulariser whose weight is."""
    known = tf.get_static_value(tensor)
    if known is not None:
        return not np.any(known)
    inputs = tensor.op.inputs
    if tensor.op.type in PASSING:
        return is_zero(inputs[0])
    if tensor.op.type in PRODUCTS:
        return any(is_zero(each) for each in inputs)
    return tensor.op.type in SUMS and all(is_zero(each) for each in inputs)


def told_kinds(
    whole: Sequence[float], slices: Sequence[Sequence[float]], counts: Sequence[int], step: float
) -> list[str | None]:
    """Of each added loss whether it is a mean or a sum over the examples, told by a batch and its slices.

    They do not tell (None) where it is 0, or no number, or where there is one slice.
    """
    return [_kind(value, [own[i] for own in slices], counts, step) for i, value in enumerate(whole)]


def _kind(whole: float, parts: Sequence[float], counts: Sequence[int], step: float) -> str | None:
    if len(parts) < 2 or not (whole or any(parts)) or not np.all(np.isfinite([whole, *parts])):
        return None
    mean = sum(part * n for part, n in zip(parts, counts, strict=True)) / sum(counts)
    total = sum(parts)
    # With dropout or local statistics neither is exact; one is N times the other.
    return SUM if abs(whole - total) < abs(whole - mean) - step * abs(whole) else MEAN


def unjoined(prediction: Any, rows: int | None) -> Iterator[Problem]:
    """Outputs of a model that are not one for each example, so that those of slices cannot be joined."""
    for i, output in enumerate(tf.nest.flatten(prediction)):
        # Of a sparse tensor the shape may be known only when the graph runs.
        shape = None if output is None or output.shape.rank is None else tuple(output.shape)
        if shape is not None and (not shape or shape[0] not in (None, rows)):
            what = "a number" if not shape else f"of shape {shape}"
            rule = f"is {what} for a slice of {rows} examples, whose first dim must be that of the examples"
            fix = "Return one value for each example, or train on one device: devices=1"
            yield Problem("output of the model", i, rule, fix)


def nothing(prediction: Any, loss: Any) -> Iterator[Problem]:
    """A model that returns nothing, where somebody wants what it returns: a loss, or whoever predicts."""
    if prediction is None and loss is not None:
        rule = "is what its call returns, and there is nothing to compute a loss or metrics from"
        yield Problem("output of the model", None, rule, "Return the prediction")


def untrained(name: str, trainable: Sequence[Any]) -> Iterator[Problem]:
    """A model of which nothing is trained; Keras warns, and only measures it."""
    if not trainable:
        rule = "has no trainable weights: all its layers are frozen, and there is nothing to train"
        fix = "Set trainable=True of a layer and compile again, or measure it: cn.evaluate"
        yield Problem("model", name, rule, fix)


def joined(predictions: Sequence[Any], where: str = "fit()") -> Any:
    """The prediction for a batch, from those for its slices. A model may give none."""
    check(where, _of_other_widths(predictions))
    return tf.nest.map_structure(_one_after_the_other, *predictions)


def _of_other_widths(predictions: Sequence[Any]) -> Iterator[Problem]:
    """Outputs that are as wide as the slice has examples, or as its longest text."""
    for i, parts in enumerate(zip(*map(tf.nest.flatten, predictions), strict=True)):
        shapes = [part.shape[1:] for part in parts if isinstance(part, tf.Tensor) and part.shape.rank]
        if not all(shape.is_compatible_with(shapes[0]) for shape in shapes):
            rule = (
                f"has other dims for each slice, {' and '.join(str(part.shape) for part in parts)}, so that "
            )
            rule += "those of a batch cannot be made of them"
            fix = "Let it be of one width, let every device take a whole batch (per_device=True), or use "
            yield Problem("output of the model", i, rule, f"{fix}devices=1")


def _one_after_the_other(*parts: Any) -> Any:
    if parts[0] is None or len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts))
    return tf.concat(parts, axis=0)
