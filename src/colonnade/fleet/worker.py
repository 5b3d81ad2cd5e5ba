"""One machine of a cluster, as the launcher sees it: what to start there, and how that gets on."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from colonnade.fleet.printer import Printer
from colonnade.fleet.wire import LONGEST, Lines, parted, told


@dataclass(frozen=True)
class Place:
    """Where a worker is started, and how.

    Args:
        name: what the machine is called.
        host: under which the other machines reach it.
        command: what starts our end there: see remote_shell.py.
        request: what that end is asked for: see far_end.py.
        here: whether that is this machine, where the ports of all workers are chosen at once.
        environment: that our end starts with, if not with ours.
        keep: descriptors that it inherits.
    """

    name: str
    host: str
    command: Sequence[str]
    request: Mapping[str, Any]
    here: bool = False
    environment: Mapping[str, str] | None = None
    keep: tuple[int, ...] = ()


class Worker:
    """Our end on one machine, from its start to its end.

    `said` holds what it has told: hello, port, refused, ended. Lines of the program go to our own streams,
    with the machine's name before each.
    """

    def __init__(self, place: Place, width: int, printer: Printer) -> None:
        self.place, self.said, self._printer = place, dict[str, Any](), printer
        self.over = False  # its process has ended, and all that it printed was read
        self.lost_words = ""  # the last line before it said hello: where ssh tells what went wrong
        self._prefix = f"{place.name:{width}} | "
        self._lines = {"out": Lines(LONGEST), "err": Lines(LONGEST)}
        pipe = subprocess.PIPE
        # A session of its own: a terminal's Ctrl-C reaches the launcher alone, which passes it on.
        self.process = subprocess.Popen(
            place.command,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
            env=place.environment,
            pass_fds=place.keep,
        )
        for stream in self.streams.values():
            os.set_blocking(stream, False)
        self.ended = os.pidfd_open(self.process.pid)
        self.tell(dict(place.request))

    @property
    def streams(self) -> dict[str, int]:
        """The descriptors to read from, by name."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return {"out": self.process.stdout.fileno(), "err": self.process.stderr.fileno()}

    def tell(self, message: dict[str, Any] | None = None) -> None:
        """Send a message; without one, a sign of life."""
        assert self.process.stdin is not None
        # One that has ended is seen to have.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(told(message) if message is not None else b"\n")
            self.process.stdin.flush()

    def hang_up(self) -> None:
        """Tell it that we are gone: it ends the program and all that it started."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def read(self, stream: str) -> bool:
        """Take what has come; False if nothing more comes now."""
        try:
            chunk = os.read(self.streams[stream], 2**16)
        except BlockingIOError:
            return False
        self._take(stream, chunk)
        return bool(chunk)

    def _take(self, stream: str, chunk: bytes) -> None:
        for line in self._lines[stream].feed(chunk):
            text, message = parted(line)
            if message is not None and stream == "out":
                self.said.update(message)
            if text is not None:
                self._show(text, sys.stdout if stream == "out" else sys.stderr)

    def _show(self, text: str, to: TextIO) -> None:
        if "hello" not in self.said and text.strip():
            self.lost_words = text.strip()
        self._printer.print(f"{self._prefix}{text}", to)

    def finish(self) -> None:
        """Its process has ended: read the rest.

        Whatever else still holds a stream open, as a connection does that ssh shares, says nothing of it.
        """
        for stream in self.streams:
            while self.read(stream):
                pass
            self._take(stream, b"")
        self.process.wait()
        self.over = True

    def close(self) -> None:
        """Give all descriptors back; the process has ended, or is killed."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        os.close(self.ended)

    @property
    def code(self) -> int | None:
        """The program's exit code; None as long as it runs, and where the machine was lost."""
        code: int | None = self.said.get("ended")
        return code

    @property
    def lost(self) -> bool:
        """Whether the connection ended without word of the program."""
        return self.over and self.code is None
