"""One step at a call, on slices that the call before has sent to their cards: so Keras asks for steps.

A call takes the slices that are there. Meanwhile it sends those of the batch that comes next, if one graph
serves both. That one is given to the call beside its own batch, and was fetched before: so the copy waits for
nothing that the step computes, and a step never fails for data that do.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.batch.widths import kind_of
from colonnade.run.data.coming_batches import ComingBatches
from colonnade.run.engine.protocols import Stepped, Then
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.move.slices_ahead import HOST, ON_CARDS, SlicesAhead
from colonnade.run.trace.concrete import concrete

FLAG = tf.TensorSpec([], tf.bool)
# Makes of a batch that is like the one at hand what a step takes.
AsBatch = Callable[[Any], Arguments]


class StepAhead:
    """The graph of such a step, for batches of one size and structure.

    Args:
        step: builds the graph of a step on a batch.
        batch: one of these batches.
        places: for all of its slices.
        inputs: what a replica's trace takes for the plain tensors of a slice.
    """

    def __init__(
        self, step: Callable[[Arguments], Any], batch: Arguments, places: SlicesAhead, inputs: Sequence[Any]
    ) -> None:
        self.places = places
        ahead = places.only(worth_sending(batch, inputs))
        specs = [tf.TensorSpec(c.shape, c.dtype) for c in known(batch)]

        def sent(*components: Any) -> Any:
            with tf.device(HOST), tf.control_dependencies([ahead.send(batch.with_components(components))]):
                return tf.constant(True)

        def made(goes_on: Any, *components: Any) -> Any:
            own, following = components[: len(specs)], components[len(specs) :]
            with tf.device(HOST):
                taken = ahead.take(batch.with_components(own))
                tf.cond(goes_on, lambda: sent(*following), lambda: tf.constant(False))
                return step(taken)

        self.graph, self._sent = concrete(made, FLAG, *specs, *specs), concrete(sent, *specs)

    def fill(self, batch: Arguments) -> None:
        """Send the slices of a batch before a step on it."""
        with tf.device(HOST):  # a call is where its arguments go
            self._sent(*batch.components())

    def __call__(self, batch: Arguments, following: Arguments | None) -> Any:
        """A step on this batch, whose slices are there; meanwhile those of what follows are sent."""
        given = batch if following is None else following
        with tf.device(HOST):
            goes_on = tf.constant(following is not None)
            return self.graph(goes_on, *batch.components(), *given.components())


class StepsAhead:
    """Calls of such steps one after the other; knows whose slices are there."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, StepAhead | None] = {}  # by the kind of a batch
        self._filled: SlicesAhead | None = None

    def of(self, key: Hashable, made: Callable[[], StepAhead | None]) -> StepAhead | None:
        """The step for batches of this kind, which is made the first time; None if nothing is sent ahead."""
        if key not in self._steps:
            self._steps[key] = made()
        return self._steps[key]

    def call(self, step: StepAhead, batch: Arguments, coming: ComingBatches, as_batch: AsBatch) -> Any:
        """One step on the batch at hand, as the step before has left it.

        Args:
            step: for batches like this one.
            batch: the one at hand.
            coming: where it was taken from, and others will be.
            as_batch: makes of those what a step takes.
        """
        filled, self._filled = self._filled, None
        there = coming.seen_before and filled is step.places
        if not there:
            if filled is not None:  # with a batch that is cut in another way by now, or never came
                filled.free()
            step.fill(batch)
        following = _alike(batch, coming, as_batch)
        result = step(batch, following)
        if following is None:  # who computes something else meanwhile has all memory for it
            step.places.free()
            coming.at_end(None)
        else:
            self._filled = step.places
            coming.at_end(step.places.free)
        return result


def of_engine(engine: Stepped, then: Then, batch: Arguments) -> StepAhead | None:
    """Steps of an engine on such batches; None where it sends nothing ahead. In eager code."""
    places = engine.ahead(batch)
    if places is None:
        return None
    engine.prepare(batch)
    return StepAhead(lambda given: then(engine.step(given), given), batch, places, engine.inputs(batch))


def worth_sending(batch: Arguments, inputs: Sequence[Any]) -> list[bool]:
    """For each plain tensor of a batch whether slices of it go ahead: those that a replica uses on its card.

    What is not cut would take as much room on every card.
    """
    roles = [leaf.role for leaf in batch.tensors for _ in tf.nest.flatten(leaf.value, expand_composites=True)]
    return [
        role == "split" and tensor.dtype in ON_CARDS and bool(tensor.consumers())
        for role, tensor in zip(roles, inputs, strict=True)
    ]


def known(arguments: Arguments) -> list[Any]:
    """Specs of the plain tensors of a batch, as far as they are the same for all batches like it.

    The lengths of rows of a ragged tensor, and how many values a sparse one has, are not.
    """
    return arguments.resized(arguments.size("the batch") or 0).components()


def _alike(batch: Arguments, coming: ComingBatches, as_batch: AsBatch) -> Arguments | None:
    """The batch that comes next, if one graph serves it too. Of others nothing is said before their turn."""
    following = coming.peek()
    if following is None or _kind(following) != _kind(coming.at_hand):
        return None
    other = as_batch(following)
    return other if other.key() == batch.key() else None


def _kind(data: Any) -> Hashable:
    """Equal for batches of one structure and of as many rows."""
    batch = Arguments((without_optionals(data),), {}, ("data",))
    return kind_of(batch), tuple(leaf.size() for leaf in batch.split)
