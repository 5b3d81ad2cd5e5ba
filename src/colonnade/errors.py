"""Every error that Colonnade raises on purpose.

ColonnadeError
├── InvalidArgument (ValueError)      what the user passed cannot be used; lists everything wrong
├── MissingTensorFlow (ImportError)   TensorFlow is not installed
├── AlreadyStarted (RuntimeError)     TensorFlow has started its devices; settings come too late
├── NotFinite (ArithmeticError)       a loss or a gradient is NaN or infinite
├── PlacementError (RuntimeError)     an op ran, or would have to run, on another device than asked
├── BrokenSums (RuntimeError)         a sum by the cards' own library failed, and none works any more
├── LeaseTimeout (TimeoutError)       no cards came free in the time given
├── CheckpointInUse (RuntimeError)    another program saves into the directory
├── LostCheckpoint (RuntimeError)     the directory was taken away from the program that saves into it
├── DamagedCheckpoint (RuntimeError)  no saved step in the directory is whole
├── UnreadCheckpoint (OSError)        a saved step cannot be read now, and may be whole
└── DiskFull (OSError)                there is no room for another checkpoint
"""

import operator
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeGuard

RESUMABLE = 75  # EX_TEMPFAIL: the exit code by which a program asks to be started again


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


class BrokenSums(ColonnadeError, RuntimeError):
    """A sum by the cards' own library failed; TensorFlow refuses all others until the process ends."""

    def __init__(self, way: str, said: str) -> None:
        super().__init__(
            f'reduce="{way}": a sum over the cards was broken off: a card did not come to it in time, or an '
            "op of the step failed, such as for want of memory. From now on TensorFlow refuses all others "
            "in this process. Start the program again: with checkpoint= it goes on as saved. If "
            f'that happens again, choose reduce="ring", which needs no library. TensorFlow says: {said}'
        )


class LeaseTimeout(ColonnadeError, TimeoutError):
    """No cards came free in the time given."""

    def __init__(self, count: int, place: int) -> None:
        super().__init__(
            f"{count} card{'s' if count > 1 else ''} did not come free in time; place in line: {place}. "
            "See who has them with: colonnade leases"
        )


class CheckpointInUse(ColonnadeError, RuntimeError):
    """Another program saves into the directory; `pid` and `host` say which, if it could be found out."""

    def __init__(self, directory: str, pid: int | None, host: str | None) -> None:
        self.pid, self.host = pid, host
        who = f"process {pid} on {host}" if pid is not None else "another process"
        super().__init__(
            f"{who} saves into {directory}. Wait for its end, or give this run a directory of its own."
        )


class LostCheckpoint(ColonnadeError, RuntimeError):
    """The directory, or the lock in it, was removed or moved while a program saved into it."""

    def __init__(self, directory: str, step: int, what: str) -> None:
        self.step = step
        super().__init__(
            f"step {step} could not be saved in {directory}: {what} while this program used it, so another "
            "program may save there now, and nothing more was written. What was saved before is where the "
            "directory is now. Bring it back, see that no other program uses it, and run the same again."
        )


class DamagedCheckpoint(ColonnadeError, RuntimeError):
    """No saved step in the directory is whole; `flaws` says of each what is wrong with it."""

    def __init__(self, directory: str, flaws: dict[str, str]) -> None:
        self.flaws = flaws
        super().__init__(
            "\n".join(
                [
                    f"No saved step in {directory} is whole:",
                    *(f"  {name}: {flaw}" for name, flaw in flaws.items()),
                    "Bring one back from a copy, or move the directory away to begin anew.",
                ]
            )
        )


class UnreadCheckpoint(ColonnadeError, OSError):
    """A saved step cannot be read now. It may be whole, so no older one is used in its place."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(
            f"{path} cannot be read now: {reason}. It may be whole, and nothing was changed. Mend that and "
            "run the same again, or move it out of its directory to go on from the one before."
        )


class DiskFull(ColonnadeError, OSError):
    """There is no room for another checkpoint. The training and the older checkpoints are as they were."""

    def __init__(self, directory: str, step: int | None) -> None:
        self.step = step
        what = "nothing" if step is None else f"step {step}"
        could = "can" if step is None else "could not"
        super().__init__(
            f"the disk is full: {what} {could} be saved in {directory}. Older checkpoints are whole. "
            "Make room, or keep fewer (keep=), and run the same again."
        )


def check(where: str, problems: Iterable[Problem]) -> None:
    """Raise one error that lists all `problems`, if there are any."""
    amiss = tuple(problems)
    if amiss:
        raise InvalidArgument(where, amiss)


def is_whole(
    value: object, least: int | None = None, most: int | None = None, *, numpy: bool = False
) -> TypeGuard[int]:
    """Whether a value is a whole number, from `least` and to `most` where they are given.

    True and False are none. NumPy's integers are some with `numpy=True`: for who takes them as they are, not
    for JSON, which has no word for them, nor for TensorFlow, which takes them for 64 bits.
    """
    if numpy and not isinstance(value, bool) and getattr(value, "ndim", 0) == 0:
        with suppress(TypeError):
            value = operator.index(value)  # type: ignore[arg-type]
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def whole(argument: str, value: object, least: int, *, like: int, numpy: bool = False) -> Iterator[Problem]:
    """A problem, if the value of an argument is not a whole number from `least` up, such as `like`."""
    if not is_whole(value, least, numpy=numpy):
        yield Problem(argument, value, f"must be a whole number from {least} up", f"Try {argument}={like}")
