"""Whether XLA compiles what a replica computes: as asked for, or whichever of the two ways is faster here.

With `compile="auto"` the steps of a training take turns: some as they are, some compiled. All of them count,
because both ways compute the same function, so nothing has to be put back. After a few turns the faster
way is kept.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from colonnade.errors import Problem, check

# A turn of one way ends after so many steps or seconds, whichever comes first; each way has so many turns.
TURN_STEPS, TURN_SECONDS, TURNS = 20, 0.25, 3
# Compiled must be faster by this much: else it is not worth what compiling takes for every new size of batch.
GAIN = 0.97


def compile_problems(wanted: Any, *, synchronous: bool = True, pipelined: bool = False) -> Iterator[Problem]:
    """What is wrong with `compile=`, before anything is traced."""
    if not isinstance(wanted, bool) and wanted != "auto":
        yield Problem("compile", wanted, "must be False, True or 'auto'", "Leave it out")
    elif wanted and pipelined:
        yield Problem("compile", wanted, "is not for pipelines, whose stages are cut apart", "Leave it out")
    elif wanted and not synchronous:
        yield Problem("compile", wanted, "is for cn.Synchronous() only", "Leave it out")


class Compilation:
    """The way at hand, and how it came about.

    Args:
        wanted: True, False or `auto`.
        where, argument: who asked for it, and how, for what is told to the user.
    """

    def __init__(
        self, wanted: bool | str = False, where: str = "Trainer()", argument: str = "compile"
    ) -> None:
        self.wanted, self._where, self._argument = wanted, where, argument
        self.on = wanted is True
        self.undecided = wanted == "auto"
        self._decided: str | None = None
        self.say: Callable[[str], None] = lambda text: None  # to whoever watches
        self._turns: dict[bool, list[float]] = {False: [], True: []}  # seconds per step of each turn
        self._rows: int | None = None  # of the batches that are compared
        self._warm: set[bool] = set()
        self._steps, self._seconds = 0, 0.0  # of the turn at hand

    @property
    def verdict(self) -> str | None:
        """What became of it, and why; None where nobody asked."""
        if self.undecided:
            return "not decided: both ways have not had their turns"
        return "compiled by XLA, as asked for" if self.wanted is True else self._decided

    def refuse(self, amiss: Sequence[Problem]) -> None:
        """Raise what keeps XLA from it, where it was asked for."""
        check(self._where, [replace(problem, argument=self._argument) for problem in amiss])

    def decline(self, why: str) -> None:
        """XLA cannot compile this training."""
        self._decide(False, f"not compiled by XLA: {why}")

    def note(self, rows: int, steps: int, seconds: float) -> None:
        """So many steps were made in the way at hand; while nothing is decided, the other one may be next."""
        if not self.undecided:
            return
        if self.on not in self._warm:  # the first call compiles, and finds its memory
            self._warm.add(self.on)
            self.on = not self.on
            return
        self._rows = self._rows or rows
        if rows != self._rows:
            return
        self._steps, self._seconds = self._steps + steps, self._seconds + seconds
        if self._steps >= TURN_STEPS or self._seconds >= TURN_SECONDS:
            self._turns[self.on].append(self._seconds / self._steps)
            self._steps, self._seconds = 0, 0.0
            self.on = not self.on
            if all(len(turns) >= TURNS for turns in self._turns.values()):
                self._compare()

    def _compare(self) -> None:
        plain, compiled = (statistics.median(self._turns[way]) * 1000 for way in (False, True))
        faster = compiled < GAIN * plain
        what = "compiled by XLA" if faster else "not compiled by XLA"
        self._decide(faster, f"{what}: {compiled:.3g} ms per step compiled, {plain:.3g} as it is")

    def _decide(self, on: bool, verdict: str) -> None:
        self.on, self.undecided, self._decided = on, False, verdict
        self.say(verdict)
