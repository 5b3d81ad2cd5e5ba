"""The launcher's end on a machine: leases cards there, runs the program, ends it when the launcher is gone.

    launcher ══ ssh, or a pipe ══ watch        hears the launcher: its messages, its silence, its end
                                  └─ work      dies with the watch; leases, and is `supervise`'s launcher
                                     └─ supervisor
                                        └─ program

The watch starts the work, passes signals on to it, and kills it when the launcher is gone; upon which the
supervisor ends the program and all that it started. What is said, in this order (see wire.py):

    launcher   {"directory", "command", "environment", "lease"}    lease: what to ask for; None for no lease
    work       {"hello": version} or {"refused": why}
    launcher   {"prepare": true}
    work       {"port": number} once it has its cards, or {"refused": why}
    launcher   {"start": environment}
    watch      {"ended": exit code}
    launcher   {"signal": number} at any time
"""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade import __version__
from colonnade.errors import ColonnadeError, LeaseTimeout
from colonnade.fleet import launch, ports
from colonnade.fleet.supervise import adopt_orphans, die_with, end_descendants, supervise
from colonnade.fleet.wire import Lines, say

SILENCE = (
    30.0  # seconds without a sign of the launcher, which gives one every few, before it is taken for dead
)
CANNOT_START = 127  # as a shell says it
REFUSED = 2


def main() -> None:
    """Be the watch."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the program's, and comes as a message
    orders, write = os.pipe()
    adopt_orphans()
    watch, work = os.getpid(), os.fork()
    if work == 0:
        os.close(write)
        _become_work(watch, orders)
    os.close(orders)
    code = _watch(work, write)
    end_descendants()
    with contextlib.suppress(BrokenPipeError):
        say({"ended": code})
    sys.exit(code)


def _watch(work: int, orders: int) -> int:
    """Pass on what the launcher says until the work has ended, and end the work when the launcher is gone."""
    lines, ended, last = Lines(), os.pidfd_open(work), time.monotonic()
    while True:
        ready, _, _ = select.select([0, ended], [], [], max(0.0, last + SILENCE - time.monotonic()))
        if ended in ready:
            return _code(os.waitpid(work, 0)[1])
        chunk = os.read(0, 2**16) if ready else b""
        if not chunk:
            os.kill(work, signal.SIGKILL)
            return _code(os.waitpid(work, 0)[1])
        last = time.monotonic()
        for line in filter(None, lines.feed(chunk)):
            message = json.loads(line)
            if "signal" in message:
                os.kill(work, message["signal"])
            else:
                with contextlib.suppress(BrokenPipeError):  # it has ended, which is seen next
                    os.write(orders, line + b"\n")


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _become_work(watch: int, orders: int) -> None:
    """Be the work in a process of its own; does not return."""
    code = os.EX_SOFTWARE
    try:
        die_with(watch)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        with open(orders, "rb") as heard:
            code = _work(_Orders(heard))
    except ColonnadeError as error:
        say({"refused": str(error)})
        code = REFUSED
    except KeyboardInterrupt:
        code = launch.INTERRUPTED
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Orders:
    """What the launcher says, as the watch passes it on."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def next(self) -> dict[str, Any]:
        line = self._file.readline()
        if not line:  # the watch is gone, and this process is about to be killed
            os._exit(os.EX_OSERR)
        message: dict[str, Any] = json.loads(line)
        return message


def _work(orders: _Orders) -> int:
    """Do what the launcher asks for; the exit code is the program's."""
    request = orders.next()
    command: Sequence[str] = request["command"]
    os.environ.update(request["environment"])
    refused = _amiss(request["directory"], command)
    if refused:
        say({"refused": refused})
        return REFUSED
    say({"hello": __version__})
    orders.next()
    lease = request["lease"]
    if (
        lease is not None
        and lease["cards"] is None
        and lease["virtual"] is None
        and not launch.pool_of(1, None).slots
    ):
        print("colonnade: no cards here, computing on the CPU", file=sys.stderr, flush=True)
        lease = None
    if lease is None:
        return _run(orders, command, os.environ)
    directory = lease.pop("directory")
    try:
        with launch.leased(command, **lease, directory=directory and Path(directory)) as held:
            inside = launch.environment(os.environ, held, lease["virtual"] is not None)
            return _run(orders, command, inside, held.descriptor)
    except LeaseTimeout as error:
        print(f"colonnade: {error}", file=sys.stderr)
        return launch.TIMED_OUT


def _amiss(directory: str, command: Sequence[str]) -> str | None:
    """Why the program cannot be started on this machine, if it cannot."""
    try:
        os.chdir(directory)
    except OSError as error:
        return f"the directory {directory} is not there ({error.strerror})"
    if not shutil.which(command[0]):
        return f"there is no program {command[0]!r} that can be executed"
    return None


def _run(orders: _Orders, command: Sequence[str], inside: Mapping[str, str], *keep: int) -> int:
    say({"port": ports.free()[0]})
    environment = {**inside, **orders.next()["start"]}
    try:
        return supervise(command, environment, *keep).code
    except OSError as error:
        print(f"colonnade: {command[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return CANNOT_START


if __name__ == "__main__":
    main()
