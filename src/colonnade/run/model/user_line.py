"""One error for what a model raises on a slice and not on the whole batch, with the line that raised it."""

import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from colonnade.errors import ColonnadeError, InvalidArgument, Problem
from colonnade.run.trace.ops import is_users


class Failures:
    """Remembers what user code raised while it was traced; AutoGraph and Keras dress it up later."""

    def __init__(self) -> None:
        self.last: BaseException | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a number of examples may lead to any, such as a division by 0
            if not isinstance(error, ColonnadeError):
                self.last = error
            raise

    @contextmanager
    def told(self, where: str, name: str, counts: Sequence[int], whole: Callable[[], Any]) -> Iterator[None]:
        """Around the tracing of slices: what is raised there alone is told as a mistake with its line.

        Args:
            where: who asks.
            name: of the model.
            counts: how many examples slices have.
            whole: traces the whole batch, or raises what that raises.
        """
        try:
            yield
        except ColonnadeError:
            raise
        except Exception:
            noted, self.last = self.last, None
            if noted is None:
                raise
            whole()
            rows = " or ".join(str(count) for count in dict.fromkeys(counts))
            rule = f"does not take a slice of {rows} examples: {first_line(noted)}{_line(noted)}"
            fix = "Take the number of examples from the input, keras.ops.shape(x)[0]. Where a batch is not "
            fix += "examples one after the other, name the inputs that are (split=[...]), let every device "
            fix += "take a whole batch (per_device=True), or use devices=1"
            raise InvalidArgument(where, [Problem("model", name, rule, fix)]) from None


def _line(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if not frames:
        return ""
    file, number = frames[-1].filename, frames[-1].lineno or 0
    return f" (at {file}:{number}: {linecache.getline(file, number).strip()})"


def first_line(error: BaseException) -> str:
    """What was said, without the frames that Keras and TensorFlow add."""
    # Of a key that is not there Python shows no more than that, and the texts around it in quotes.
    missing = isinstance(error, KeyError) and bool(error.args)
    text = str(error.args[0]) if missing else str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    plain = [line for line in lines if not line.startswith(("Exception encountered", "Arguments received"))]
    said = (plain or lines or [type(error).__name__])[0]
    said = re.sub(r"\x1b\[\d+m", "", said).rstrip(".:")
    return f"KeyError: {said}" if missing else said
