"""Which losses of Keras are no means over the examples, so that slices cannot compute them one by one."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.model.training_step import has_own
from colonnade.run.model.whole_batch import SUM

# With these the loss of a batch is the mean of its slices' losses, weighted by their sizes.
OF_MEANS = ("sum_over_batch_size", "mean")
# These are quotients of sums over their dims, by default over the examples too.
QUOTIENTS = (keras.losses.Dice, keras.losses.Tversky)
QUOTIENTS_OF_ALL = ("dice", "Dice", "tversky", "Tversky", keras.losses.dice, keras.losses.tversky)
# These compare every example with every other.
PAIRWISE = (keras.losses.Circle,)
PAIRWISE_NAMES = ("circle", "Circle", keras.losses.circle)


def of_slices(loss: Any) -> Iterator[Problem]:
    """Losses of which it is known that they are not means over the examples."""
    for one in tf.nest.flatten(loss):
        reduction = getattr(one, "reduction", "sum_over_batch_size")
        if reduction not in OF_MEANS:
            rule = f"has reduction={reduction!r}, which is not the mean of the slices' losses"
            yield Problem("loss", name_of(one), rule, "Use sum_over_batch_size, or cn.Synchronous()")
        if getattr(one, "ignore_class", None) is not None:
            rule = f"has ignore_class={one.ignore_class}, so slices with more of it would count too much"
            yield Problem("loss", name_of(one), rule, "Use cn.Synchronous(), the default")
        if _is_quotient(one):
            rule = "is a quotient of sums over all examples, which is not the mean of the slices' losses"
            yield Problem("loss", name_of(one), rule, "Give it axis=... without 0, or use cn.Synchronous()")
        if isinstance(one, PAIRWISE) or one in PAIRWISE_NAMES:
            rule = "compares all examples of a batch with each other, and a slice has only some of them"
            yield Problem("loss", name_of(one), rule, "Use cn.Synchronous(), the default")


def source_of(model: keras.Model) -> tuple[str, Any]:
    """What says how the loss of a model is computed."""
    if has_own(model, "compute_loss"):
        return "compute_loss", type(model).__name__
    names = [name_of(loss) for loss in tf.nest.flatten(model.loss)]
    return "loss", names[0] if len(names) == 1 else names


def missing(model: keras.Model, y: Any) -> Iterator[Problem]:
    """A target that the compiled loss needs."""
    if y is None and model.loss is not None and not has_own(model, "compute_loss"):
        rule = f"is missing, and the model is compiled with loss={source_of(model)[1]!r}"
        yield Problem("y", None, rule, "Pass y, or a dataset of (x, y)")


def uncounted(
    name: str, kinds: Mapping[tuple[str, int], str], *, masked: bool, summed: bool
) -> Iterator[Problem]:
    """What is in the way of devices that do not wait for each other: a mask, a sum, layers that add sums."""
    fix = "Use cn.Synchronous(), the default"
    if summed:
        rule = "computes a loss for each example, whose sum Keras differentiates, so each slice would count "
        yield Problem("model", name, f"{rule}too little", f"Return their mean. {fix}")
        return
    if masked:
        rule = "has a mask at its output, so slices with more masked would count too much"
        yield Problem("model", name, rule, fix)
        return
    sums = [layer for (layer, _), kind in kinds.items() if kind == SUM]
    rule = "is a sum over the examples of a batch, so each slice would count too little"
    yield Problem("add_loss", sums[0], rule, fix)


def name_of(loss: Any) -> Any:
    """A loss is an object, a function or a name."""
    return getattr(loss, "name", getattr(loss, "__name__", loss))


def _is_quotient(loss: Any) -> bool:
    if isinstance(loss, QUOTIENTS):
        return loss.axis is None or 0 in tf.nest.flatten(loss.axis)
    return loss in QUOTIENTS_OF_ALL
