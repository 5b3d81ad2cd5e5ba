"""Saves and restores the place of a `tf.data` iterator, with the seeds of its shuffles."""

from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.data.shuffles import Shuffles

CHOICES = ("exact", "skip", "restart")
FIX = (
    'Choose with cn.Checkpoint(..., data=...): "skip" goes through what was seen again, and is exact if the '
    'same data come in the same order; "restart" begins with the first batch'
)
# Every shuffle that is at work writes this into the state of the iterator once (TensorFlow 2.21; a test keeps
# watch). Between two rounds of a `repeat` there is none, and then the seeds of later rounds would be lost.
SHUFFLE = b"epoch_num_random_samples"
FAIL = 2  # tf.data.experimental.ExternalStatePolicy.FAIL, as the op counts it


def save_iterator(iterator: Any, where: str) -> Any:
    """The state of a dataset's iterator, as a tensor that can be saved."""
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=_handle(iterator), external_state_policy=FAIL)
    except tf.errors.FailedPreconditionError as error:
        reason = error.message.partition("}} ")[2].partition(" [Op")[0] or error.message
        rule = f"keeps a state that TensorFlow does not give out ({reason.rstrip('.')})"
        raise InvalidArgument(where, [Problem("data", "a dataset", rule, FIX)]) from None


def restore_iterator(iterator: Any, state: Any, where: str) -> None:
    """Bring an iterator over the same dataset to a state that was saved."""
    try:
        tf.raw_ops.DeserializeIterator(resource_handle=_handle(iterator), serialized=state)
    except tf.errors.OpError as error:
        rule = f"is not built like the one of the saved step ({error.message.partition(' [Op')[0]})"
        raise InvalidArgument(where, [Problem("data", "a dataset", rule, FIX)]) from None


def comes_again(start: Any, later: Any, shuffles: Shuffles) -> bool:
    """Whether a pass, begun once more from its start, gives the same batches even without seeds.

    Not if there are shuffles of which the start does not know: those of later rounds, and those that
    are begun with the first batch or later, below another shuffle or behind another dataset.

    Args:
        start: the state before the first batch.
        later: the state after it.
        shuffles: those of the dataset.
    """
    try:
        before, after = _bytes(start), _bytes(later)
    except tf.errors.OpError:  # larger than TensorFlow can put into one piece
        return False
    num_shuffles = max(len(shuffles.each), after.count(SHUFFLE))  # functions of maps may have others
    return not shuffles.repeated and before.count(SHUFFLE) >= num_shuffles


def num_shuffles_at_work(state: Any) -> int:
    """How many shuffles this state tells of; to restore it sets their seeds, and those of no others."""
    return _bytes(state).count(SHUFFLE)


def other_batches() -> InvalidArgument:
    """The data were gone through again, and what came was not what had come before."""
    rule = (
        "did not give the batches again that it gave before the save: the data are others, or they come in "
        "an order of the moment, as by map(..., deterministic=False)"
    )
    return InvalidArgument("fit()", [Problem("data", "a dataset", rule, f"Pass the same data. Or: {FIX}")])


def generator_problem(data: Any) -> Problem:
    """A generator gives no state at all."""
    rule = "the place in it cannot be saved"
    return Problem(
        "data", type(data).__name__, rule, f"Pass a tf.data.Dataset. Or: {FIX[0].lower()}{FIX[1:]}"
    )


def other_parts(step: int, before: int, now: int) -> Problem:
    """The data of the saved step were parted among another number of machines."""
    rule = (
        f"step {step} was saved where {_readers(before)}, and now {_readers(now)}: what was seen is not what "
        "would be skipped"
    )
    return Problem("data", "skip", rule, 'Go on as it was, or choose data="restart"')


def _readers(parts: int) -> str:
    return f"{parts} machines had data of their own" if parts > 1 else "there was one set of data"


def _handle(iterator: Any) -> Any:
    return tf.nest.flatten(iterator, expand_composites=True)[0]


def _bytes(state: Any) -> bytes:
    return bytes(tf.io.serialize_tensor(state).numpy())
