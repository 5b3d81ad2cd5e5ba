"""Computes one slice on one device, and knows where in the results each field lies; nobody else does."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.run.trace.raw_call import Call


@dataclass(frozen=True)
class SliceReport:
    """The numbers that a slice reports.

    They leave the graph as one vector: to read it takes less time than to read a tensor for each.
    """

    amount: Any  # of examples, or the sum of their weights
    means: Any  # of the loss with the penalty, then of each metric
    watched: Any  # what must be finite: the loss without the penalty, then the health of gradients

    @staticmethod
    def packed(
        *, amount: Any, loss: Any, metrics: Sequence[Any], own_loss: Any, health: Sequence[Any], dtype: Any
    ) -> Any:
        """The vector, in the graph; `health` is a list of vectors, all else are single numbers."""
        single = [tf.cast(value, dtype) for value in (amount, loss, *metrics, own_loss)]
        return tf.concat([tf.stack(single), *(tf.cast(numbers, dtype) for numbers in health)], axis=0)

    @classmethod
    def read(cls, vector: Any, num_metrics: int) -> "SliceReport":
        """The fields of a vector that was packed, in Python."""
        end = 2 + num_metrics
        return cls(amount=vector[0], means=vector[1:end], watched=vector[end:])

    @property
    def loss(self) -> float:
        """With the penalty."""
        return float(self.means[0])

    @property
    def own_loss(self) -> float:
        """Of the slice alone, without the penalty."""
        return float(self.watched[0])


@dataclass(frozen=True)
class SliceResults:
    """What a device's call gives."""

    report: SliceReport
    turned: Any  # when the forward pass was over; a tensor
    states: Sequence[Any]  # as they were before
    gradient: Sequence[Any]  # with the scale of the loss in front, where that changes
    outputs: Sequence[Any]  # what else the function returned

    @staticmethod
    def packed(
        *,
        report: Any,
        turned: Any,
        states: Sequence[Any],
        gradient: Sequence[Any],
        outputs: Sequence[Any],
    ) -> list[Any]:
        """One flat list, in the graph; `SliceCall` takes it apart."""
        return [report, turned, *states, *gradient, *outputs]


@dataclass(frozen=True)
class SliceCall:
    """What one device does with slices of one size."""

    call: Call
    states: Sequence[tf.Variable]
    num_gradients: int  # tensors
    num_metrics: int
    outputs: Any  # the structure of what else the function returned
    push: Call
    gradient_bytes: int = 0  # without those of unknown shape
    paced: bool = False  # whether it takes the global step, before all else

    def __call__(self, tensors: Sequence[Any], step: Any = None) -> SliceResults:
        """Compute: from the parameters that the device has read, and the slice."""
        report, turned, *rest = self.call(*([step] if self.paced else []), *tensors)
        start = len(self.states)
        end = start + self.num_gradients
        return SliceResults(
            report=SliceReport.read(report.numpy(), self.num_metrics),
            turned=turned,
            states=rest[:start],
            gradient=rest[start:end],
            outputs=rest[end:],
        )

    def undo(self, results: SliceResults) -> None:
        """The states as they were."""
        for state, value in zip(self.states, results.states, strict=True):
            state.assign(value)

    def outputs_of(self, results: SliceResults) -> Any:
        """What else the function returned."""
        flat = results.outputs
        return tf.nest.pack_sequence_as(self.outputs, flat, expand_composites=True) if flat else None
