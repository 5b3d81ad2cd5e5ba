"""Every error that Colonnade raises on purpose.

ColonnadeError
├── InvalidArgument (ValueError)      what the user passed cannot be used; lists everything wrong
├── MissingTensorFlow (ImportError)   TensorFlow is not installed
├── AlreadyStarted (RuntimeError)     TensorFlow has started its devices; settings come too late
├── PlacementError (RuntimeError)     an op ran, or would have to run, on another device than asked
└── LeaseTimeout (TimeoutError)       no cards came free in the time given
"""

from collections.abc import Iterable
from dataclasses import dataclass


class ColonnadeError(Exception):
    """The root: `except cn.ColonnadeError` catches whatever Colonnade raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with what a user passed, in the four parts that help to mend it."""

    argument: str
    value: object
    rule: str
    fix: str

    def __str__(self) -> str:
        return f"{self.argument}={self.value!r}: {self.rule}. {self.fix}."


class InvalidArgument(ColonnadeError, ValueError):
    """Arguments that cannot be used; `problems` holds every one of them."""

    def __init__(self, where: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{where} cannot work with:", *(f"  {p}" for p in self.problems)]))


class MissingTensorFlow(ColonnadeError, ImportError):
    """TensorFlow is needed and not installed."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} needs TensorFlow, which is not installed. Install one of\n"
            "  pip install 'colonnade[cpu]'    for a machine without cards\n"
            "  pip install 'colonnade[gpu]'    for NVIDIA cards"
        )


class AlreadyStarted(ColonnadeError, RuntimeError):
    """Settings arrived after TensorFlow had started its devices."""


class NotFinite(ColonnadeError, ArithmeticError):
    """A loss or a gradient is NaN or infinite. Nothing was applied."""

    def __init__(
        self, message: str, *, device: str | None = None, step: int = 0, variable: str | None = None
    ) -> None:
        self.device, self.step, self.variable = device, step, variable
        super().__init__(message)


class PlacementError(ColonnadeError, RuntimeError):
    """An op ran, or would have to run, on another device than the one asked for."""


class LeaseTimeout(ColonnadeError, TimeoutError):
    """No cards came free in the time given."""

    def __init__(self, count: int, place: int) -> None:
        super().__init__(
            f"{count} card{'s' if count > 1 else ''} did not come free in time; place in line: {place}. "
            "See who has them with: colonnade leases"
        )


def check(where: str, problems: Iterable[Problem]) -> None:
    """Raise one error that lists all `problems`, if there are any."""
    found = tuple(problems)
    if found:
        raise InvalidArgument(where, found)
