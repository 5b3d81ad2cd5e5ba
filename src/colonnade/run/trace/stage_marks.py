"""Marks in a trace where a value passes from one stage of a pipeline to the next, and its gradient back.

A training step has twice as many legs as stages: forward through stage 0, 1, ..., then backward through
..., 1, 0. While a function is traced, a value that enters another stage is marked by an op that hands it on,
and the gradient of that op marks where the gradient comes back. Cut at the marks (see `stage_cut`), the trace
of one device becomes that of several.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple

import tensorflow as tf


class Mark(NamedTuple):
    """An op at which a value comes from one leg and goes to a later one."""

    source: int
    target: int


class StageMarks:
    """The marks that are made while a function is traced."""

    def __init__(self) -> None:
        self._marks: list[tuple[Any, Mark]] = []
        self.pipelines: dict[Hashable, int] = {}  # the number of stages of each that was called

    def enter(self, pipeline: Hashable, num_stages: int) -> None:
        """A pipeline is called."""
        self.pipelines[pipeline] = num_stages

    def cross(self, value: Any, source: int, target: int, num_stages: int) -> Any:
        """A nest of tensors that leaves one stage and enters another."""
        there = Mark(source, target)
        back = Mark(backward_leg(target, num_stages), backward_leg(source, num_stages))
        return tf.nest.map_structure(
            lambda leaf: self._marked(leaf, there, back) if tf.is_tensor(leaf) else leaf,
            value,
            expand_composites=True,
        )

    def turn(self, loss: Any) -> Any:
        """The loss that is differentiated: with its gradient the way back begins."""
        if not self.pipelines:
            return loss
        last = max(self.pipelines.values())

        @tf.custom_gradient
        def turned(value: Any) -> Any:
            return tf.identity(value), lambda gradient: self._mark(gradient, Mark(last, last))

        return turned(loss)

    def marks(self, graph: Any) -> dict[str, Mark]:
        """By the name of an op: the marks in a graph; others are of a first trace that made variables."""
        return {tensor.op.name: mark for tensor, mark in self._marks if tensor.graph is graph}

    def _marked(self, tensor: Any, there: Mark, back: Mark) -> Any:
        @tf.custom_gradient
        def marked(value: Any) -> Any:
            return self._mark(value, there), lambda gradient: self._mark(gradient, back)

        return marked(tensor) if tensor.dtype.is_floating else self._mark(tensor, there)

    def _mark(self, value: Any, mark: Mark) -> Any:
        tensor = tf.identity(value)
        self._marks.append((tensor, mark))
        return tensor


def backward_leg(stage: int, num_stages: int) -> int:
    """The leg in which a gradient passes a stage.

    >>> [backward_leg(stage, 3) for stage in range(3)]
    [5, 4, 3]
    """
    return 2 * num_stages - 1 - stage


def stage_of(leg: int, num_stages: int) -> int:
    """The stage at work in a leg.

    >>> [stage_of(leg, 3) for leg in range(6)]
    [0, 1, 2, 2, 1, 0]
    """
    return min(leg, 2 * num_stages - 1 - leg)
