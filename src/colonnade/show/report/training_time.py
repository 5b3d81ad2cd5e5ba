"""How long a run had trained at a moment: its sessions one after the other, without the time between them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from colonnade.describe.run_folder import Line, Run, number, sessions
from colonnade.describe.spans import Span


class TrainingTime:
    """The sessions of a run, each with its beginning and its end.

    Example:
        >>> time = TrainingTime([(100.0, 110.0), (500.0, 530.0)])
        >>> time.total, time.at(105.0), time.at(300.0), time.at(501.0)
        (40.0, 5.0, 10.0, 11.0)
    """

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = sorted(spans)
        self._begins = [begin for begin, _ in self._spans]
        self._before = [0.0, *accumulate(end - begin for begin, end in self._spans)]

    @classmethod
    def of(cls, run: Run) -> "TrainingTime":
        return cls(_spans(run))

    @property
    def total(self) -> float:
        return self._before[-1]

    def at(self, time: float) -> float:
        """Seconds trained by then."""
        k = bisect_right(self._begins, time) - 1
        if k < 0:
            return 0.0
        begin, end = self._spans[k]
        return self._before[k] + min(time, end) - begin


def _spans(run: Run) -> Iterator[Span]:
    """A session that was killed ends with the last line that it wrote."""
    logged = list(_times(run.lines))
    told = sorted([*logged, *_times(run.progress)])
    begun = [(start, end) for begin, end in sessions(run) if (start := number(begin.get("time"))) is not None]
    first = min((start for start, _ in begun), default=float("inf"))
    early = [time for time in logged if time < first]  # of sessions whose beginning is not known
    if early:
        yield min(early), max(early)
    for k, (start, end) in enumerate(begun):
        following = begun[k + 1][0] if k + 1 < len(begun) else float("inf")
        stop = None if end is None else number(end.get("time"))
        if stop is None:
            stop = told[bisect_left(told, following) - 1]
        # Clocks are put back now and then.
        yield start, max(start, min(stop, following))


def _times(lines: Iterable[Line]) -> Iterator[float]:
    return (time for line in lines if (time := number(line.get("time"))) is not None)
