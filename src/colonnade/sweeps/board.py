"""What a sweep has to show: the trials that run, how many ended how, the best so far, and the time left."""

import statistics
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from colonnade.sweeps.slots.ending import CUT, Ending


@dataclass
class RunningTrial:
    """A trial that runs now."""

    number: int
    cards: tuple[str, ...]
    params: dict[str, Any]
    attempt: int = 1
    since: float = field(default_factory=time.monotonic)
    step: int | None = None
    value: float | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since


@dataclass(frozen=True)
class BestTrial:
    """The best of the trials that are complete."""

    number: int
    value: float
    params: dict[str, Any]


@dataclass(frozen=True)
class StudyState:
    """How many trials of a study are in which state, as the storage says, and the best of them."""

    counts: Counter[str]  # complete, pruned, failed, running, waiting
    best: BestTrial | None


@dataclass
class Board:
    """Of one sweep; `wanted` is how many trials the study is to have in all."""

    study: str
    wanted: int
    maximize: bool
    counts: Counter[str] = field(default_factory=Counter)
    best: BestTrial | None = None
    running: dict[int, RunningTrial] = field(default_factory=dict)
    slots: int = 0
    in_line: int = 0
    since: float = field(default_factory=time.monotonic)
    lasted: deque[float] = field(default_factory=lambda: deque(maxlen=50))  # seconds of the last trials

    @property
    def finished(self) -> int:
        return sum(self.counts[kind] for kind in ("complete", "pruned", "failed"))

    @property
    def seconds_left(self) -> float | None:
        """As long as the last trials took, for those that are left; None while nothing is known."""
        if not self.lasted or not self.slots:
            return None
        return statistics.mean(self.lasted) * max(0, self.wanted - self.finished) / self.slots

    def take(self, state: StudyState) -> None:
        """What the storage says, which other machines write to as well."""
        self.counts, self.best = state.counts, state.best

    def end(self, trial: RunningTrial, ending: Ending) -> None:
        self.running.pop(trial.number, None)
        if ending.kind == CUT:
            return
        self.counts[ending.kind] += 1
        self.lasted.append(trial.seconds)
        if ending.value is not None and self._is_better(ending.value):
            self.best = BestTrial(trial.number, ending.value, trial.params)

    def _is_better(self, value: float) -> bool:
        if self.best is None:
            return True
        return value > self.best.value if self.maximize else value < self.best.value


class Watcher(Protocol):
    """Who is told what happens, to show it."""

    def begun(self, trial: RunningTrial) -> None: ...

    def ended(self, trial: RunningTrial, ending: Ending) -> None: ...

    def noted(self, text: str) -> None: ...

    def tick(self, board: Board) -> None: ...


class Unwatched:
    """Nobody looks."""

    def begun(self, trial: RunningTrial) -> None:
        pass

    def ended(self, trial: RunningTrial, ending: Ending) -> None:
        pass

    def noted(self, text: str) -> None:
        pass

    def tick(self, board: Board) -> None:
        pass
