"""What a device raises for a slice when it runs, where one device takes the whole batch: told as a mistake.

What is raised while a slice is traced is known by its line (see `model.user_line`). This is what only numbers
show: a row that a slice does not have, texts that are padded to the longest of a slice.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.prove.look import Look

UNCUT = "Name the inputs that have a row for each example, if not all have (split=[...]), let every device "
UNCUT += "take a whole batch (per_device=True), let outputs be of one width, or use devices=1"
WHOLE = "Pass whole what has no row for each example: cn.broadcast(table); or use devices=1"


@contextmanager
def told(where: str, name: str, look: Callable[[], Look], fix: str = UNCUT) -> Iterator[None]:
    """Around what computes slices: what only they raise is told, all else is as it was raised.

    Args:
        where: who asks.
        name: of the model.
        look: at the batch, as a whole and in slices; only where something was raised.
        fix: what the user can do.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError:
        # What one device raises too is the user's own mistake; what neither raises is of something else, such
        # as the next batch.
        error = None if _error(lambda: look().one) else _error(lambda: look().several)
        if error is None:
            raise
        rule = f"takes the batch as a whole, and fails in slices: {_said(error)}"
        raise InvalidArgument(where, [Problem("model", name, rule, fix)]) from None


def _error(compute: Callable[[], Any]) -> tf.errors.OpError | None:
    try:
        compute()
    except tf.errors.InvalidArgumentError as error:
        return error
    return None


def _said(error: tf.errors.OpError) -> str:
    """The message, without the node that TensorFlow names."""
    lines = [re.sub(r"\{\{.*?\}\} *| \[Op:\w+\].*", "", line).strip() for line in error.message.splitlines()]
    return next((line for line in lines if line), type(error).__name__).rstrip(".:")
