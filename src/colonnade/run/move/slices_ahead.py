"""The slices of the next batch, copied to their cards while the step before computes.

A step that begins with a copy from the host waits for it. So every card has a place for a slice, a variable
for each of its tensors: a step takes what is there, and meanwhile the slice of the next step is put there.
What a step has taken lives as long as it is used, so a card holds two slices for that time.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import tensorflow as tf

from colonnade.run.batch.split import Arguments

# What is not on a device of its own, above all the batch and its cutting, is here: else it would be on the
# first card, and reach the others from there.
HOST = "/device:CPU:0"
# What ops on a card take from its own memory. All else, such as whole numbers of 32 bits and strings,
# TensorFlow keeps in the memory of the host, for cards too.
ON_CARDS = (
    *(tf.bool, tf.int8, tf.uint8, tf.int16, tf.int64),
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
)


class CutArguments(Arguments):
    """Arguments that were cut before, maybe with the parts on their devices by now."""

    def __init__(self, like: Arguments, parts: list[Arguments]) -> None:
        self.count, self.structure, self.leaves = like.count, like.structure, like.leaves
        self._parts = parts

    def parts(self, counts: Sequence[Any]) -> list[Arguments]:
        assert len(counts) == len(self._parts), "cut for other counts"
        return self._parts


class SlicesAhead:
    """Places for the slices of batches of one kind. To be made in eager code: it has variables.

    Args:
        batch: one of these batches, or specs of it.
        counts: the sizes of its slices.
        devices: where each of them goes.
    """

    def __init__(self, batch: Arguments, counts: Sequence[int], devices: Sequence[str]) -> None:
        self._counts = tuple(counts)
        self._like = [batch.resized(count) for count in counts]
        self.places = [
            [_place(spec, device) for spec in part.components()]
            for part, device in zip(self._like, devices, strict=False)
        ]
        # For each plain tensor of a batch whether it goes ahead.
        self._sent = tuple(True for _ in self._like[0].components())

    def only(self, sent: Sequence[bool]) -> "SlicesAhead":
        """The same places, where a step has its batch at hand too.

        Args:
            sent: for each plain tensor of a batch whether it goes ahead; the step takes the others from the
                batch.
        """
        other = copy(self)
        other._sent = tuple(sent)
        return other

    def send(self, batch: Arguments) -> Any:
        """In a graph: put the slices of a batch there; what to wait for until they are."""
        assigned = [
            place.assign(component, read_value=False)
            for part, places in zip(batch.parts(self._counts), self.places, strict=True)
            for component, place, sent in zip(part.components(), places, self._sent, strict=True)
            if sent
        ]
        return tf.group(*assigned)

    def take(self, batch: Arguments) -> CutArguments:
        """In a graph: what is there, as a batch that is like this one and cut."""
        parts = []
        at_hand = self._like if all(self._sent) else batch.parts(self._counts)
        for like, places, part in zip(self._like, self.places, at_hand, strict=True):
            specs = zip(places, like.components(), part.components(), self._sent, strict=True)
            taken = [_taken(place, spec.shape) if sent else own for place, spec, own, sent in specs]
            parts.append(like.with_components(taken))
        return CutArguments(batch, parts)

    def free(self) -> None:
        """In eager code, when no step is to come: hold nothing."""
        for place in (place for places in self.places for place in places):
            place.assign(_nothing(place.dtype, len(place.shape), place.device))


def _taken(place: tf.Variable, shape: tf.TensorShape) -> Any:
    with tf.device(place.device):
        return tf.ensure_shape(place.read_value(), shape)


def _place(spec: Any, device: str) -> tf.Variable:
    rank, home = len(spec.shape), device if spec.dtype in ON_CARDS else HOST
    nothing = _nothing(spec.dtype, rank, home)
    with tf.device(home):
        return tf.Variable(nothing, shape=[None] * rank, trainable=False, name="slice_ahead")


def _nothing(dtype: tf.DType, rank: int, device: str) -> Any:
    with tf.device(device):
        return tf.fill([0] * rank, "") if dtype == tf.string else tf.zeros([0] * rank, dtype)
