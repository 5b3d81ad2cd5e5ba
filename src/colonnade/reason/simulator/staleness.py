"""Asynchronous training on paper: which device may read when, and how old a gradient is when applied.

The age of a gradient is the number of updates between the reading of the parameters it was computed
from and the update that it makes. Two devices, the second one twice as slow:

    time       0           1           2
    device 0   read        apply read        apply read
    device 1   read                    apply       read
    age                    0           1     1

Where the age is bounded, a device waits before it reads, so no gradient is computed in vain.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple


class ReadOrApply(NamedTuple):
    """A device reads the parameters and takes the next slice, or applies the gradient of its slice."""

    kind: Literal["read", "apply"]
    device: int


class Ledger:
    """Counts updates, and knows which devices have read and not yet applied.

    >>> ledger = Ledger(bound=1)
    >>> ledger.read(0), ledger.read(1), ledger.may_read()
    (None, None, False)
    >>> ledger.applied(1), ledger.applied(0)
    (0, 1)
    """

    def __init__(self, bound: int | None = None) -> None:
        self.bound = bound
        self.updates = 0
        self._read_at: dict[int, int] = {}  # by device: how many updates there were

    def may_read(self) -> bool:
        """Whether one more device may read: whoever applies last, its gradient is within the bound.

        The gradient that was read first is the oldest. At worst all others are applied before it:
        those that are under way, and the one that asks. An update turns one of the others from under
        way into applied, so what holds when a device reads holds until all have applied.
        """
        if self.bound is None or not self._read_at:
            return True
        return self.updates - min(self._read_at.values()) + len(self._read_at) <= self.bound

    def is_reading(self, device: int) -> bool:
        return device in self._read_at

    def read(self, device: int) -> None:
        self._read_at[device] = self.updates

    def applied(self, device: int) -> int:
        """The age of the gradient that the device applies."""
        age = self.updates - self._read_at.pop(device)
        self.updates += 1
        return age

    def left_out(self, device: int) -> None:
        """The device's gradient is not applied after all."""
        del self._read_at[device]


def race(seconds: Sequence[float], max_staleness: int | None = None) -> Iterator[ReadOrApply]:
    """Reads and updates, for ever, of devices that need so long for a slice each.

    Args:
        seconds: for each device the time from a read to the update.
        max_staleness: the largest age of a gradient; devices wait in line before they read.

    >>> from itertools import islice
    >>> [f"{kind} {device}" for kind, device in islice(race([1.0, 2.0]), 7)]
    ['read 0', 'read 1', 'apply 0', 'read 0', 'apply 1', 'read 1', 'apply 0']
    """
    ledger = Ledger(max_staleness)
    line = deque(range(len(seconds)))
    under_way: list[tuple[float, int, int]] = []  # when it ends, then who was first, then the device
    now, reads = 0.0, 0
    while True:
        while line and ledger.may_read():
            device = line.popleft()
            ledger.read(device)
            # Of two that end together, the one that has worked for longer comes first.
            heapq.heappush(under_way, (now + seconds[device], reads, device))
            reads += 1
            yield ReadOrApply("read", device)
        now, _, device = heapq.heappop(under_way)
        ledger.applied(device)
        line.append(device)
        yield ReadOrApply("apply", device)
