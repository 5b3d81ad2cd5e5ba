"""How long the steps of a graph take, and so how long one of them may take before it is taken for stuck."""

from collections import deque

from colonnade.hardware.clusters.meeting import IN_STEPS

# Seconds for a step of which nothing is known: TensorFlow prepares a graph when it is called for the first
# time. And for machines that train by themselves, whose join takes as long as a slow network has it.
FIRST_CALLS = 300.0
# Calls that count. A step that waited once, such as for the data of another machine, took long for a reason
# that is over: counted for ever, it would be given to every machine that hangs later.
RECENT = 16


class CallPace:
    """The pace of the latest calls of one graph; the first one has its preparation in it.

    Args:
        steady: whether its batches are all of one size. If not, a step may take many times as long as those
            before it, and the next start would come to it again.
    """

    def __init__(self, *, steady: bool = True) -> None:
        self._steady = steady
        self._first: float | None = None
        self._latest = deque[float](maxlen=RECENT)

    def note(self, seconds_per_step: float) -> None:
        """After a call: what a step took, without the time in which data were waited for."""
        if self._first is None:
            self._first = seconds_per_step
        else:
            self._latest.append(seconds_per_step)

    @property
    def longest(self) -> float:
        """That a step took lately, in seconds; 0 while nothing is known."""
        return max(self._latest, default=0.0)

    @property
    def patience(self) -> float:
        """How many seconds the next call may stand still."""
        if self._first is None or not self._steady:
            return FIRST_CALLS
        if not self._latest:  # the second call takes no longer than the first, which prepared the graph
            return min(_allowed(self._first), FIRST_CALLS)
        return _allowed(self.longest)


def _allowed(seconds: float) -> float:
    """For a step where one is known to take so long: its own time, and then as for a machine that hangs."""
    return seconds + max(IN_STEPS, 3 * seconds)
