"""Adds up what the slices of an asynchronous step tell: losses, metrics, staleness, skipped updates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.trace.fast_call import Call


@dataclass(frozen=True)
class Compute:
    """What one device does with slices of one size, and how to read what it returns.

    The first result is a vector: the amount of examples, the loss, the metrics, then what must be finite.
    After it come the states as they were before, the gradient, and what else the function returned.
    """

    call: Call
    states: Sequence[tf.Variable]
    num_gradients: int
    outputs: Any  # the structure of what else the function returned
    push: Call

    def undo(self, results: Sequence[Any]) -> None:
        """The states as they were."""
        for state, value in zip(self.states, results[1:], strict=False):
            state.assign(value)

    def gradient(self, results: Sequence[Any]) -> Sequence[Any]:
        start = 1 + len(self.states)
        return results[start : start + self.num_gradients]

    def packed(self, results: Sequence[Any]) -> Any:
        """What else the function returned."""
        flat = results[1 + len(self.states) + self.num_gradients :]
        return tf.nest.pack_sequence_as(self.outputs, flat, expand_composites=True) if flat else None


@dataclass(frozen=True)
class Sliced:
    """How batches of one kind are cut and computed."""

    rows: int
    counts: tuple[int, ...]
    cut: Call
    computes: dict[tuple[int, int], Compute]  # by device and size of slice
    metrics: tuple[str, ...]
    dtype: Any  # of the loss

    @property
    def watched(self) -> int:
        """Where, in what a slice tells, that begins which must be finite."""
        return 2 + len(self.metrics)


@dataclass
class Tally:
    """A global step on its way: what its slices have told so far."""

    number: int
    pace: Any  # the step by which a schedule goes, as a tensor
    sliced: Sliced
    told: dict[int, Any] = field(default_factory=dict)  # by position in the batch
    outputs: dict[int, Any] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)  # by device
    ages: Counter[int] = field(default_factory=Counter)
    # Counts slices where they are finished: a step of an iterator is never cut in two.
    finished: Iterator[int] = field(default_factory=lambda: count(1))

    def note(self, found: "Finished") -> None:
        self.told[found.piece.position] = found.told
        self.outputs[found.piece.position] = found.outputs
        self.losses[found.device] = found.loss
        if found.age is not None:
            self.ages[found.age] += 1

    @property
    def complete(self) -> bool:
        return len(self.told) == len(self.sliced.counts)

    @property
    def updates(self) -> int:
        return self.ages.total()

    @property
    def skipped(self) -> int:
        return len(self.told) - self.updates

    def means(self) -> list[float]:
        """Of the loss, and of each metric, over the batch."""
        table = np.stack([self.told[i][: self.sliced.watched] for i in sorted(self.told)])
        amounts = table[:, 0] if table[:, 0].any() else np.ones(len(table))  # all weights may be 0
        return (amounts @ table[:, 1:] / amounts.sum()).tolist()

    def metrics(self) -> dict[str, float]:
        return dict(zip(self.sliced.metrics, self.means()[1:], strict=True))


@dataclass(frozen=True)
class Piece:
    """A slice in the queue."""

    tally: Tally
    position: int
    tensors: Sequence[Any]

    def compute(self, device: int) -> Compute:
        return self.tally.sliced.computes[device, self.tally.sliced.counts[self.position]]


@dataclass(frozen=True)
class Finished:
    """What became of a slice."""

    piece: Piece
    device: int
    told: Any
    age: int | None  # None where no update was made
    outputs: Any

    @property
    def loss(self) -> float:
        """Of the slice alone, without the penalty."""
        return float(self.told[self.piece.tally.sliced.watched])
