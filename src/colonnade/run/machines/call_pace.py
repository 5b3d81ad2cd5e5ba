"""How long the steps of a graph take, and so how long one of them may take before it is taken for stuck."""

from colonnade.hardware.clusters.meeting import IN_STEPS

# Seconds for a step of which nothing is known: TensorFlow prepares a graph when it is called for the first
# time. And for machines that train by themselves, whose join takes as long as a slow network has it.
FIRST_CALLS = 300.0


class CallPace:
    """The pace of the calls of one graph; the first one does not count.

    Args:
        steady: whether its batches are all of one size. If not, a step may take many times as long as those
            before it, and the next start would come to it again.
    """

    def __init__(self, *, steady: bool = True) -> None:
        self._steady = steady
        self._calls = 0
        self.longest = 0.0  # that a step took, in seconds; 0 while nothing is known

    def note(self, seconds_per_step: float) -> None:
        """After a call: what a step took, without the time in which data were waited for."""
        self._calls += 1
        if self._calls > 1:
            self.longest = max(self.longest, seconds_per_step)

    @property
    def patience(self) -> float:
        """How many seconds the next call may stand still."""
        if self._calls < 2 or not self._steady:
            return FIRST_CALLS
        return self.longest + max(IN_STEPS, 3 * self.longest)
