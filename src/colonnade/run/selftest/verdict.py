"""One check of `colonnade selftest`: what it compares, how much may differ, and what came of it.

What is found and its figures are said in words of this package, so they can be handed on. The words of
others, as of an error, may tell whose machine it is; they are kept apart, for the screen alone.
"""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import colonnade

PACKAGE = Path(colonnade.__file__).parent
CheckState = Literal["passed", "failed", "not applicable"]
STATES: dict[bool | None, CheckState] = {True: "passed", False: "failed", None: "not applicable"}


@dataclass(frozen=True)
class Verdict:
    """What a check found: `passed` is None where it does not apply."""

    passed: bool | None
    found: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""  # of others


@dataclass(frozen=True)
class Result:
    """The outcome of a check on this machine."""

    check: str
    compares: str
    tolerance: str  # with its reason
    state: CheckState
    found: str
    seconds: float
    figures: Mapping[str, Any]
    words: str = ""  # of others


@dataclass(frozen=True)
class SelfCheck:
    """A comparison, and how much may differ for what reason."""

    name: str
    compares: str
    tolerance: str
    run: Callable[[tuple[str, ...]], Verdict]

    def on(self, devices: tuple[str, ...]) -> Result:
        """Run it on these devices; an error is a failure, so that the other checks still run."""
        begin = time.perf_counter()
        try:
            verdict = self.run(devices)
        except Exception as error:
            words = str(error).strip().partition("\n")[0][:300]
            verdict = Verdict(False, type(error).__name__, {"where": _where(error)}, words)
        return Result(
            self.name,
            self.compares,
            self.tolerance,
            STATES[verdict.passed],
            verdict.found,
            round(time.perf_counter() - begin, 2),
            verdict.figures,
            verdict.words,
        )


def _where(error: Exception) -> list[str]:
    """The functions of Colonnade that the error went through."""
    frames = [(Path(f.filename), f) for f in traceback.extract_tb(error.__traceback__)]
    ours = [(path.relative_to(PACKAGE), f) for path, f in frames if path.is_relative_to(PACKAGE)]
    return [f"{path.as_posix()}:{f.lineno} {f.name}" for path, f in ours]
