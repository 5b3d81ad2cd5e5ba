"""Where a training is in its data: the state of TensorFlow's iterator, with shuffle buffers and seeds."""

from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem

CHOICES = ("exact", "skip", "restart")
FIX = (
    'Choose with cn.Checkpoint(..., data=...): "skip" goes through what was seen again, and is exact if the '
    'same data come in the same order; "restart" begins with the first batch'
)
# A shuffle writes this into the state, if it is in the midst of its data. Between two rounds of a
# `repeat` it may write nothing, and then the order of later rounds would not be found again.
SHUFFLE = b"num_random_samples"
FAIL = 2  # tf.data.experimental.ExternalStatePolicy.FAIL, as the op counts it


def frozen(iterator: Any, where: str) -> Any:
    """The state of a dataset's iterator, as a tensor that can be saved."""
    try:
        return tf.raw_ops.SerializeIterator(resource_handle=_handle(iterator), external_state_policy=FAIL)
    except tf.errors.FailedPreconditionError as error:
        reason = error.message.partition("}} ")[2].partition(" [Op")[0] or error.message
        rule = f"keeps a state that TensorFlow does not give out ({reason.rstrip('.')})"
        raise InvalidArgument(where, [Problem("data", "a dataset", rule, FIX)]) from None


def thaw(iterator: Any, state: Any, where: str) -> None:
    """Bring an iterator over the same dataset to a state that was frozen."""
    try:
        tf.raw_ops.DeserializeIterator(resource_handle=_handle(iterator), serialized=state)
    except tf.errors.OpError as error:
        rule = f"is not built like the one of the saved step ({error.message.partition(' [Op')[0]})"
        raise InvalidArgument(where, [Problem("data", "a dataset", rule, FIX)]) from None


def shuffles(state: Any) -> int:
    """How many shuffles are in the midst of their data."""
    return int(tf.io.serialize_tensor(state).numpy().count(SHUFFLE))


def generator_problem(data: Any) -> Problem:
    """A generator gives no state at all."""
    rule = "the place in it cannot be saved"
    return Problem(
        "data", type(data).__name__, rule, f"Pass a tf.data.Dataset. Or: {FIX[0].lower()}{FIX[1:]}"
    )


def _handle(iterator: Any) -> Any:
    return tf.nest.flatten(iterator, expand_composites=True)[0]
