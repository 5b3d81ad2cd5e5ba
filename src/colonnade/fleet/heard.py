"""Signals as something to wait for beside other things."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from colonnade.fleet.supervise import END

# Ctrl-Z is not taken: the workers would go on, and take the launcher for dead.
TAKEN = END | {signal.SIGUSR1, signal.SIGUSR2}
IGNORED = {signal.SIGTSTP}


class HeardSignals:
    """While it is open, signals to this process end and stop nobody, and are kept until they are taken.

    Those that are ignored already, as nohup has it, stay so.
    """

    def __enter__(self) -> Self:
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        heard = {number for number in TAKEN if signal.getsignal(number) != signal.SIG_IGN}
        self._before = {number: signal.signal(number, _wake) for number in heard}
        self._before |= {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._write)

    def taken(self) -> Iterator[int]:
        """The signals that have come since the last time, in their order."""
        with contextlib.suppress(BlockingIOError):
            yield from (number for number in os.read(self.descriptor, 2**16) if number in TAKEN)


def _wake(number: int, frame: object) -> None:
    """Python writes the number into the descriptor before it calls this."""
