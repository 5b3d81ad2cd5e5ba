"""A contender's side of the contest: it says when it is ready, and trains when it is its turn.

It prints a line of JSON when it has imported what it needs, one when its first step is made and its setting
chosen, and one after each turn. Its training begins with a line on its input, and so does each of its turns:
`go SECONDS`. Until such a line comes it waits, which costs no core.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

COUNTED = 2  # calls of a turn, at least
TRIALS = 3  # of each setting; the middle one counts

Call = Callable[[], Any]


class Turns:
    """The turns of a training that makes `steps` steps per call.

    Args:
        steps: steps of a call.
        ready: figures to tell beforehand.
    """

    def __init__(self, steps: int, **ready: Any) -> None:
        self._steps = steps
        self._ends: list[float] = []
        self._seconds = 0.0
        tell(ready)
        self.over = not self._wait()

    def tick(self, *_: Any) -> bool:
        """A call has ended; whether it was the last one. The first of a turn warms up and is not counted."""
        self._ends.append(time.perf_counter())
        counted = len(self._ends) - 1
        if counted >= COUNTED and self._ends[-1] - self._ends[0] >= self._seconds:
            between = [b - a for a, b in pairwise(self._ends)]
            tell({"step": median(between) / self._steps * 1000})
            self.over = not self._wait()
        return self.over

    def take(self, call: Call) -> None:
        """All turns of a contender that calls its own steps."""
        while not self.over:
            call()
            self.tick()

    def _wait(self) -> bool:
        """Until the next turn; False if there is none."""
        self._ends = []
        words = sys.stdin.readline().split()
        if not words:
            return False
        self._seconds = float(words[1])
        return True


def imported() -> None:
    """Wait until it is this contender's time to train. All import side by side, which is not measured."""
    tell({"imported": True})
    sys.stdin.readline()


def tell(figures: Mapping[str, Any]) -> None:
    print(json.dumps(figures), flush=True)


def peak() -> float:
    """Of the memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fastest(ways: Mapping[str, Call], refused: tuple[type[Exception], ...] = ()) -> str:
    """The name of the fastest of several ways to make the same steps, which take turns.

    A way that raises one of `refused` the first time is left out; the first way has to work.
    """
    able = {}
    for name, call in ways.items():
        try:
            call()
        except refused:
            continue
        able[name] = call
    if len(able) == 1:
        return next(iter(able))
    times: dict[str, list[float]] = {name: [] for name in able}
    for _ in range(TRIALS):
        for name, call in able.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return min(times, key=lambda name: median(times[name]))
