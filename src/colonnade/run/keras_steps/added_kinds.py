"""Whether what the layers of a model add to its loss are sums or means, told from a batch and its slices.

A loss that is 0 tells nothing. That may be because it is multiplied by a variable that is still 0, as a
divergence that is warmed up, or because it is a hinge that no example of the batch reaches. So it is looked
at with ones in place of such variables, and with numbers at random for all: whether it is a mean or a sum is
a matter of the code, and not of the numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.engine.traces import Traces
from colonnade.run.model.whole_batch import MEAN, SUM, AddedLosses, told_kinds
from colonnade.run.prove.proof import InSlices
from colonnade.run.prove.verdict import Prover

# Of what the loss function of a Keras model returns beside the loss, where the added losses are.
ADDED = 4
# How far what numbers at random are spread, one after the other.
SPREADS = (1.0, 1.0, 10.0)


class AddedKinds:
    """What the layers of a model add, and what is known of it."""

    def __init__(self) -> None:
        self.trained, self.calm = AddedLosses(), AddedLosses()  # in training, and without
        self.calm.kinds = self.trained.kinds
        self._known = False

    @property
    def doubtful(self) -> bool:
        """Whether layers add something of which nobody knows what it is."""
        return bool(self.trained.calls) and not self._known

    @property
    def _names(self) -> str:
        return ", ".join(dict.fromkeys(layer.name for layer in self.trained.layers))

    @property
    def has_sums(self) -> bool:
        return SUM in self.trained.kinds.values()

    def tells(self, found: InSlices, prover: Prover, traces: Traces) -> bool:
        """Note what a batch and its slices tell; whether that is other than what was taken for it.

        Where one device has no room for the batch, it is a slice and its halves.
        """
        before = dict(self.trained.kinds)
        with suppress(tf.errors.ResourceExhaustedError):
            if prover.has_room(traces, found.batch):
                self._note(found)
                return self.trained.kinds != before
        counts = sizes(found.counts[0], 2)
        if len(counts) > 1:
            part = found.batch.rows(range(found.counts[0]))
            self._note(InSlices.traced(traces.apart, counts, part, found.device))
        else:
            prover.unproved(f"slices of one example do not tell whether {self._names} adds a mean or a sum")
        return self.trained.kinds != before

    def _note(self, look: InSlices) -> None:
        added, told = self.trained, [MEAN if zero else None for zero in self.trained.zeros]
        for outputs in _looks(look):
            if None not in told:
                break
            try:
                whole, parts = outputs()
            except tf.errors.InvalidArgumentError:  # of numbers that are none of the user's
                continue
            found = told_kinds(_added(whole), [_added(part) for part in parts], look.counts, 1e-6)
            told = [one or other for one, other in zip(told, found, strict=True)]
        added.kinds |= {call: kind for call, kind in zip(added.calls, told, strict=True) if kind is not None}
        self._known = None not in told

    def shown_by(self, look: InSlices) -> bool:
        """Whether slices show anything of what is still doubtful; the whole batch is not computed for it."""
        return any(any(_added(part)) for part in look.outputs_of_slices())


def guilty(kinds: AddedKinds, look: InSlices) -> str | None:
    """The name of a layer that adds neither a mean nor a sum."""
    whole, parts = look.outputs()
    slices, values = zip(*(_added(part) for part in parts), strict=True), _added(whole)
    # What was traced without training may have added other losses.
    added = kinds.calm if len(kinds.calm.layers) == len(values) else kinds.trained
    for layer, value, own in zip(added.layers, values, slices, strict=False):
        mean = float(np.average(own, weights=look.counts))
        if min(abs(value - mean), abs(value - sum(own))) > 1e-4 * abs(value):
            name: str = layer.name
            return name
    return None


def _looks(look: InSlices) -> Iterator[Callable[[], tuple[Any, list[Any]]]]:
    """What a batch and its slices give: as they are, and with other values of variables and inputs."""
    yield look.outputs
    yield partial(look.outputs, {v.ref(): tf.ones_like(v) for v in look.at_zero})
    for number, spread in enumerate(SPREADS):
        rng = np.random.default_rng(number)
        read = [v for v in look.whole.variables if v.dtype.is_floating]
        yield partial(
            look.outputs,
            {v.ref(): at_random(v, rng, 1.0) for v in read},
            with_inputs_at_random(look.batch, rng, spread),
        )


def with_inputs_at_random(batch: Arguments, rng: np.random.Generator, spread: float) -> Arguments:
    values = [
        at_random(leaf.value, rng, spread)
        if leaf.role == "split" and isinstance(leaf.value, tf.Tensor) and leaf.value.dtype.is_floating
        else leaf.value
        for leaf in batch.leaves
    ]
    return batch.with_values(values)


def at_random(like: Any, rng: np.random.Generator, spread: float) -> Any:
    return tf.cast(rng.normal(scale=spread, size=tuple(like.shape)), like.dtype)


def _added(outputs: Any) -> Sequence[float]:
    return [float(value) for value in outputs[ADDED]]
