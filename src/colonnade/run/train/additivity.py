"""Checks that the loss of a batch is the mean of its slices' losses, on which `cn.fit` rests.

That is a property of what a model's loss gives, and not of its name. So it is looked at before anything is
trained: one batch is cut into slices, and the loss of the whole, for the predictions that the slices gave,
is held against the mean of the slices' losses. Dropout and local batch normalisation are in both then. What
layers add in their call is computed again for the whole, as it would be without them (`training=False`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.batch.split import Arguments
from colonnade.run.parallel.rounding import coarsest
from colonnade.run.trace.captures import captures
from colonnade.run.trace.concrete import concrete

# A difference up to this many times what another order of the examples makes is rounding.
MARGIN = 4.0
# Rounding that another order may not show, in units of the dtype's step.
FLOOR = 32.0
# Batches over which a loss that draws random numbers is averaged.
DRAWS = 8

# The values of a look: the loss, what belongs to weights alone, then what each layer added.
LOSS, OF_WEIGHTS, ADDED = 0, 1, 2


@dataclass(frozen=True)
class Losses:
    """How a model's loss is computed, without a change to any metric."""

    predict: Callable[[Any, bool], Any]  # of the input, and whether it is training
    total: Callable[[Any, Any, Any, Any, bool], Any]  # of x, y, the prediction, the weights
    parts: Callable[[], tuple[Any, dict[str, Any]]]  # after a call: of weights alone, and added, by name


class Look:
    """A batch as a whole and in slices, with or without what happens only in training."""

    def __init__(
        self, losses: Losses, batch: Arguments, num_slices: int, device: str, training: bool
    ) -> None:
        self._losses, self._training, self._device = losses, training, device
        self._rows = (batch.size("fit()") or 0) // num_slices * num_slices
        self._slices, self._batch = num_slices, batch.rows(np.arange(self._rows))
        self.names: list[str] = []  # of what was added
        one = batch.resized(self._rows // num_slices)
        self._of_slice = concrete(lambda *c: self._in_slice(one, c), *one.components())
        self._step = 0.0
        self._of_whole: Any = None
        # Of every time that it was run.
        self.wholes: list[Any] = []
        self.means: list[Any] = []
        self.sums: list[Any] = []
        self.run()

    def _in_slice(self, like: Arguments, components: Sequence[Any]) -> Any:
        (x, y, weight), _ = like.unpack(components)
        prediction = self._losses.predict(x, self._training)
        values = self._values(x, y, prediction, weight)
        return prediction, values

    def _in_whole(self, like: Arguments, components: Sequence[Any], prediction: Any) -> Any:
        (x, y, weight), _ = like.unpack(components)
        # Only for what it adds, and to see whether it is the same as in slices.
        again = self._losses.predict(x, self._training) if self.names else prediction
        return again, self._values(x, y, prediction, weight)

    def _values(self, x: Any, y: Any, prediction: Any, weight: Any) -> Any:
        total = self._losses.total(x, y, prediction, weight, self._training)
        of_weights, added = self._losses.parts()
        self.names = list(added)
        return tf.stack([tf.cast(value, tf.float64) for value in (total, of_weights, *added.values())])

    def run(self) -> None:
        """Compute all once, and put back every state that it changed."""
        with tf.device(self._device):
            parts = self._batch.parts([self._rows // self._slices] * self._slices)
            with _Kept(self._of_slice):
                of_slices = [self._of_slice(*part.components()) for part in parts]
            prediction = joined([p for p, _ in of_slices])
            if self._of_whole is None:
                like = self._batch.resized(self._rows)
                specs = _each(tf.type_spec_from_value, prediction)
                self._of_whole = concrete(lambda p, *c: self._in_whole(like, c, p), specs, *like.components())
                self._step = coarsest(self._of_whole.graph.get_operations(), but=("Placeholder",))
            order = np.random.default_rng(0).permutation(self._rows)
            permuted = _each(lambda p: tf.gather(p, order), prediction)
            with _Kept(self._of_whole):
                again, whole = self._of_whole(prediction, *self._batch.components())
                _, other = self._of_whole(permuted, *self._batch.rows(order).components())
        values = np.stack([v.numpy() for _, v in of_slices])
        self.wholes.append(whole.numpy())
        self.means.append(values.mean(axis=0))
        self.sums.append(values.sum(axis=0))
        self._noise = np.abs(whole.numpy() - other.numpy())
        self._moved = max(map(_moved, tf.nest.flatten(prediction), tf.nest.flatten(again)), default=0.0)

    @property
    def judged(self) -> bool:
        """Whether the model gave the whole what it gave the slices, so that the losses can be compared."""
        return self._moved <= np.sqrt(self._step)

    def additive(self, which: int) -> bool:
        """Whether a value of the whole is the mean of those of the slices."""
        return self._equal(which, self.wholes[0], self.means[0])

    def summed(self, which: int) -> bool:
        """Whether it is their sum. What belongs to weights alone is in each of them."""
        once = (self._slices - 1) * self.means[0][OF_WEIGHTS] if which == LOSS else 0.0
        return self._equal(which, self.wholes[0], self.sums[0] - once)

    def _equal(self, which: int, one: Any, other: Any) -> bool:
        if np.isnan(one[which]) and np.isnan(other[which]):
            return True
        scale = max(np.abs(one[which:]).max(), np.abs(other[which:]).max()) if which == LOSS else 0.0
        scale = max(scale, abs(one[which]), abs(other[which]))
        noise = min(self._noise[which], np.sqrt(self._step) * scale)
        tolerance = MARGIN * noise + (FLOOR * self._step + MARGIN * self._moved) * scale
        return bool(abs(one[which] - other[which]) <= tolerance)

    @property
    def loose(self) -> bool:
        """Whether the loss draws numbers or takes statistics of its own, so that it is never quite equal."""
        self.run()
        written = any(c.written for c in captures(self._of_whole) if c.variable is not None)
        return written or not all(self._equal(LOSS, whole, self.wholes[0]) for whole in self.wholes)

    def nearer_to_the_sum(self, which: int) -> bool:
        """Whether on average the whole is more like the sum of the slices than like their mean."""
        while len(self.wholes) < DRAWS:
            self.run()
        whole, mean, total = (np.array(v)[:, which] for v in (self.wholes, self.means, self.sums))
        if which == LOSS:
            total = total - (self._slices - 1) * np.array(self.means)[:, OF_WEIGHTS]
        gap = whole - mean
        clear = abs(gap.mean()) > MARGIN * gap.std() / np.sqrt(len(gap))
        return bool(clear and abs((whole - total).mean()) < abs(gap.mean()))


class _Kept:
    """Puts back the variables that a function writes."""

    def __init__(self, function: Any) -> None:
        written = [c.variable for c in captures(function) if c.variable is not None and c.written]
        self._before = [(variable, tf.identity(variable)) for variable in written]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for variable, value in self._before:
            variable.assign(value)


def problems(
    losses: Losses, batch: Arguments, num_slices: int, device: str, source: tuple[str, Any]
) -> Iterator[Problem]:
    """What the loss of a batch is, where it is not the mean of its slices' losses.

    Args:
        losses: how the model's losses are computed.
        batch: the first one.
        num_slices: into how many it is cut.
        device: where to look.
        source: which argument, and with what value, says how the loss is computed.
    """
    look = Look(losses, batch, num_slices, device, training=True)
    if look.judged and look.additive(LOSS):
        return
    calm = Look(losses, batch, num_slices, device, training=False)
    alike = calm.judged and calm.names == look.names
    if alike and calm.additive(LOSS):
        return
    if alike and not calm.loose:
        look, guilty, summed = calm, calm.additive, calm.summed
        blamed = [i for i in range(ADDED, ADDED + len(look.names)) if not guilty(i)] or [LOSS]
    else:
        look = calm if alike else look
        summed = look.nearer_to_the_sum
        blamed = [i for i in (LOSS, *range(ADDED, ADDED + len(look.names))) if summed(i)]
        blamed = [i for i in blamed if i != LOSS] or blamed
    for which in blamed:
        yield _problem(which, summed(which), look, source)


def _problem(which: int, summed: bool, look: Look, source: tuple[str, Any]) -> Problem:
    whole, mean = look.wholes[0][which], look.means[0][which]
    seen = f"{whole:.6g} for the first batch, and {mean:.6g} as the mean over its slices"
    if summed:
        rule = f"is a sum over the examples of a batch ({seen}), so each slice would count too little"
        fix = "Take the mean over the examples, or train on one device: devices=1"
    else:
        rule = f"is not the mean of the losses of slices ({seen})"
        fix = (
            "Where examples are left out, use cn.Trainer with cn.Weighted(losses, weights); "
            "else return a mean over the examples, or train on one device: devices=1"
        )
    name, value = source if which == LOSS else ("add_loss", look.names[which - ADDED])
    return Problem(name, value, rule, fix)


def joined(predictions: Sequence[Any]) -> Any:
    """The prediction for a batch, from those for its slices. A model may give none."""
    return tf.nest.map_structure(
        lambda *parts: None if parts[0] is None else tf.concat(parts, axis=0), *predictions
    )


def _each(fn: Callable[[Any], Any], prediction: Any) -> Any:
    return tf.nest.map_structure(lambda p: None if p is None else fn(p), prediction)


def _moved(one: Any, other: Any) -> float:
    """How much two predictions differ, in terms of the larger one."""
    if not isinstance(one, tf.Tensor) or not one.dtype.is_floating:
        return 0.0
    a, b = (tf.cast(value, tf.float64).numpy() for value in (one, other))
    with np.errstate(invalid="ignore"):
        gap = np.nan_to_num(np.abs(a - b), nan=0.0).max(initial=0.0)
    return float(gap / max(np.abs(np.nan_to_num(a)).max(initial=0.0), np.finfo(np.float64).tiny))
