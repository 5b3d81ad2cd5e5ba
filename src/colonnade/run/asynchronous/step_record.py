"""Adds up what the slices of an asynchronous step tell: losses, metrics, staleness, skipped updates."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from colonnade.run.asynchronous.slice_call import SliceCall, SliceReport
from colonnade.run.trace.raw_call import Call


@dataclass(frozen=True)
class Slicing:
    """How batches of one kind are cut and computed."""

    rows: int
    counts: tuple[int, ...]
    cut: Call
    calls: dict[tuple[int, int], SliceCall]  # by device and size of slice
    metrics: tuple[str, ...]
    dtype: Any  # of the loss


@dataclass
class StepRecord:
    """A global step under way: what its slices have reported so far."""

    number: int
    schedule_step: Any  # the step by which a schedule goes, as a tensor
    slicing: Slicing
    reports: dict[int, SliceReport] = field(default_factory=dict)  # by position in the batch
    outputs: dict[int, Any] = field(default_factory=dict)
    losses: dict[int, float] = field(default_factory=dict)  # by device
    ages: Counter[int] = field(default_factory=Counter)
    # Counts slices where they are finished: a step of an iterator is never cut in two.
    finished: Iterator[int] = field(default_factory=lambda: count(1))

    def note(self, finished: "FinishedSlice") -> None:
        self.reports[finished.piece.position] = finished.report
        self.outputs[finished.piece.position] = finished.outputs
        self.losses[finished.device] = finished.report.own_loss
        if finished.age is not None:
            self.ages[finished.age] += 1

    @property
    def complete(self) -> bool:
        return len(self.reports) == len(self.slicing.counts)

    @property
    def updates(self) -> int:
        return self.ages.total()

    @property
    def skipped(self) -> int:
        return len(self.reports) - self.updates

    def means(self) -> list[float]:
        """Of the loss, and of each metric, over the batch."""
        reports = [self.reports[i] for i in sorted(self.reports)]
        amounts = np.stack([report.amount for report in reports])
        if not amounts.any():  # all weights may be 0
            amounts = np.ones(len(reports))
        return (amounts @ np.stack([report.means for report in reports]) / amounts.sum()).tolist()

    def metrics(self) -> dict[str, float]:
        return dict(zip(self.slicing.metrics, self.means()[1:], strict=True))


@dataclass(frozen=True)
class QueuedSlice:
    """A slice that waits in the queue, or is being computed."""

    step: StepRecord
    position: int
    tensors: Sequence[Any]

    def call(self, device: int) -> SliceCall:
        return self.step.slicing.calls[device, self.step.slicing.counts[self.position]]


@dataclass(frozen=True)
class FinishedSlice:
    """What became of a slice."""

    piece: QueuedSlice
    device: int
    report: SliceReport
    age: int | None  # None where no update was made
    outputs: Any
