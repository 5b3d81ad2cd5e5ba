"""Ctrl-C, SIGTERM and SIGHUP during a fit: they end it between two steps, never within one."""

import contextlib
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any


class Interruption(threading.Event):
    """Set by the first signal; `by` says which it was."""

    by: int | None = None
    at = 0.0
    known = True  # whether all machines that train together know of it: only then it ends the fit

    @property
    def ends(self) -> bool:
        """Whether it ends the fit."""
        return self.is_set() and self.known

    def told(self) -> tuple[int | None, float] | None:
        """For other machines: which signal it was, and how long ago; None if there was none."""
        return (self.by, self.seconds) if self.is_set() else None

    def hear(self, every: Sequence[Any]) -> float | None:
        """Be told what all machines were told: the first signal of all counts.

        Returns:
            How many seconds ago it was; None if there was none.
        """
        signals = [one for one in every if one is not None]
        for by, seconds in signals:
            at = time.monotonic() - seconds
            if not self.is_set() or at < self.at:
                self.by, self.at = by, at
            self.known = True
            self.set()
        return max((seconds for _, seconds in signals), default=None)

    @property
    def seconds(self) -> float:
        """Since the first signal; 0 before it."""
        return time.monotonic() - self.at if self.is_set() else 0.0


def leave_terminal() -> None:
    """A terminal that is gone takes no words: to say some would be an error, before anything is saved."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            was_terminal = stat.S_ISCHR(os.fstat(descriptor).st_mode)
            if was_terminal and not os.isatty(descriptor):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, descriptor)
                os.close(nothing)


@contextlib.contextmanager
def interruptible(*, preemption: bool) -> Iterator[Interruption]:
    """Ctrl-C sets the event, and a second Ctrl-C raises; with `preemption`, SIGTERM and SIGHUP set it too.

    SIGHUP comes when a terminal is closed, or the connection to it is lost; under nohup it stays ignored. A
    signal of which other machines were not told, because the fit was at its end, counts as one after it.
    """
    event = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, _: Any) -> None:
        if event.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not event.is_set():
            event.by, event.at = number, time.monotonic()
        event.set()
        if number == signal.SIGHUP:
            leave_terminal()

    signals = [signal.SIGINT, *((signal.SIGTERM, signal.SIGHUP) if preemption else ())]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signals = [number for number in signals if number != signal.SIGHUP]
    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield event
    finally:
        for number, handler in before.items():
            if handler is not None:  # else it was not set by Python, which cannot set it again
                signal.signal(number, handler)
    if event.is_set() and not event.known and event.by is not None:
        signal.raise_signal(event.by)
