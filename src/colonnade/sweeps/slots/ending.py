"""How an attempt at a trial ended: what its process said last, and how it went."""

import signal
from dataclasses import dataclass

from colonnade.errors import RESUMABLE

CUT = "cut"  # the sweep ended it; it is to be tried again, and that counts as no failure
KILLED = 128  # and more: the number of the signal that ended the program


@dataclass(frozen=True)
class Ending:
    """`kind` is complete, pruned, failed or cut. A failure that `again` marks may go better next time.

    A value that is not `final` is what a program had printed last: not its result, if it was told to end.
    """

    kind: str
    value: float | None = None
    reason: str = ""
    again: bool = False
    final: bool = True


def of_exit(code: int) -> Ending:
    """The failure that an exit code without a result stands for."""
    if code == RESUMABLE:
        return Ending("failed", reason=f"exit code {RESUMABLE}: it asks to be started again", again=True)
    if code > KILLED:
        try:
            name = signal.Signals(code - KILLED).name
        except ValueError:
            return Ending("failed", reason=f"exit code {code}")
        memory = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return Ending("failed", reason=f"killed by {name}{memory}", again=True)
    return Ending("failed", reason=f"exit code {code}")
