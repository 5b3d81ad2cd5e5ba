"""What each machine of a cluster is at, and whether they wait for each other for ever.

A machine is in its own Python, or in an exchange with the others, or in a call: steps in a graph, with sums
over all machines in them. Every beat tells which. Python may take any time, and an exchange waits for who is
there. But a call in which nothing moves has to do with the others (k: the number of a call):

    in step k     others have ended k         it hangs
    in step k     all others in step k too    a link between two of them is cut, or one of them hangs
    in step k     another in an exchange,     they do not run the same program, and none of them can go on
                  and not yet at k
    in step k,    another waits for its       it is given more time, counted from when the others began to
    or exchange   data within k               wait: data come when they come
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.errors import RESUMABLE

# Seconds for the next batch, when others wait in a step for the machine that waits for it.
DATA = 120.0
# How far a call is: a number that changes, and whether the next batch is waited for.
Progress = Callable[[], tuple[int, bool]]


@dataclass(frozen=True)
class Doing:
    """What a machine is at.

    Args:
        calls: how many calls it has begun.
        within: whether it is inside the last of them.
        data: whether it waits for its data there.
        topic: of the exchange that it waits in.
        seconds: how long nothing has moved.
        patience: how long that may be, in a call.
    """

    calls: int = 0
    within: bool = False
    data: bool = False
    topic: str | None = None
    seconds: float = 0.0
    patience: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether nothing has moved for too long, in a call."""
        return self.within and self.seconds > self.patience

    @property
    def waits_for_data(self) -> bool:
        return self.within and self.data

    @property
    def waits_for_others(self) -> bool:
        """As far as one can tell: all that it does just now needs them."""
        return (self.within and not self.data) or self.topic is not None


class Whereabouts:
    """What this machine is at; one thread says it, another one asks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._calls = 0
        self._progress: Progress | None = None
        self._patience, self._since = 0.0, clock()
        self._reached: tuple[int, bool] | None = None
        self.topic: str | None = None

    def begin_call(self, progress: Progress, patience: float) -> None:
        """From now on in a call, of which nothing may stand still for so many seconds."""
        with self._lock:
            self._calls += 1
            self._progress, self._patience = progress, patience
            self._reached, self._since = None, self._clock()

    def forgive(self, seconds: float) -> None:
        """Do not count these seconds: for so long nothing could move here, nor be seen to."""
        with self._lock:
            self._since += seconds

    def end_call(self) -> None:
        """From now on in Python."""
        with self._lock:
            self._progress = None

    def begin_exchange(self, topic: str) -> None:
        with self._lock:
            self.topic, self._since = topic, self._clock()

    def end_exchange(self) -> None:
        with self._lock:
            self.topic = None

    def look(self) -> Doing:
        """What this machine is at, now."""
        with self._lock:
            calls, progress, topic = self._calls, self._progress, self.topic
        reached = None if progress is None else progress()
        with self._lock:
            if (calls, progress, topic) != (self._calls, self._progress, self.topic):
                return Doing(self._calls)  # it moves
            if progress is None:
                return Doing(calls, topic=topic, seconds=self._clock() - self._since if topic else 0.0)
            if reached != self._reached:
                self._reached, self._since = reached, self._clock()
            data = reached is not None and reached[1]
            seconds, patience = self._clock() - self._since, DATA if data else self._patience
            return Doing(calls, True, data, topic, seconds, patience)


def told(message: Mapping[str, Any]) -> Doing:
    """What another machine says of itself."""
    return Doing(**message)


def deadlock(every: Sequence[Doing], names: Sequence[str]) -> tuple[str, int] | None:
    """Why the machines cannot go on, and the exit code for it; None if they can, as far as one sees."""

    def who(ranks: Sequence[int]) -> str:
        return ", ".join(names[rank] for rank in ranks)

    without = [rank for rank, one in enumerate(every) if one.waits_for_data and one.is_late]
    if without and any(one.waits_for_others and one.seconds > DATA for one in every):
        return f"the data of {who(without)} do not come, and the others wait for it", RESUMABLE
    late = [rank for rank, one in enumerate(every) if one.is_late and not one.data]
    if not late:
        return None
    call = min(every[rank].calls for rank in late)
    stuck = [rank for rank in late if every[rank].calls == call]
    ahead = [r for r, one in enumerate(every) if one.calls > call or (one.calls == call and not one.within)]
    behind = [r for r, one in enumerate(every) if one.calls < call]
    waiting = [r for r in behind if every[r].topic and every[r].seconds > every[stuck[0]].patience]
    if ahead:
        return f"{who(stuck)} hangs: {who(ahead)} made the steps that it does not end", RESUMABLE
    if waiting:
        place = f"{who(waiting)} is at {every[waiting[0]].topic}"
        return f"the machines do not run the same program: {place}, and {who(stuck)} makes steps", 1
    if behind:
        return None  # in Python, which may take long: a trace, a callback
    if len(stuck) == len(every):
        return "no machine ends its step: a link between two of them is cut, or one of them hangs", RESUMABLE
    return None
