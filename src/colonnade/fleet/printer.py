"""Prints from a thread of its own: a terminal that is stopped, and reads nothing, holds up nothing else."""

import contextlib
import errno
import io
import os
import select
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Self, TextIO

LONGEST = 2**24  # bytes that are kept for whoever reads later; what comes then is left out, and counted


class Printer:
    """Prints lines in their order; at the end of the `with` block it waits until all are read.

    Lines that cannot be kept or written, as on a full disk or a terminal that is gone, are left out, which is
    said as soon as something can be. If nobody is ever going to read (`| head`), `check` raises.
    """

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # can be read when `check` raises
        self._lines: deque[tuple[bytes, TextIO]] = deque()
        self._kept = self._left_out = 0
        self._changed = threading.Condition()
        self._broken, self._over = False, False
        self._closed: set[TextIO] = set()  # streams that nobody reads any more
        self._thread = threading.Thread(target=self._work, name="printer", daemon=True)

    def __enter__(self) -> Self:
        for stream in (sys.stdout, sys.stderr):  # what was printed before comes before
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join()
        try:
            if error is None:
                self.check()
        finally:
            os.close(self.descriptor)

    def print(self, text: str, to: TextIO) -> None:
        """Print a line, some time."""
        line = f"{text}\n".encode(getattr(to, "encoding", None) or "utf-8", "backslashreplace")
        with self._changed:
            if self._kept + len(line) > LONGEST:
                self._left_out += 1
                return
            self._lines.append((line, to))
            self._kept += len(line)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise BrokenPipeError, once, if nobody is going to read what is printed."""
        with self._changed:
            broken, self._broken = self._broken, False
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)
        if broken:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._over:
                    self._changed.wait()
                if not self._lines:
                    return
                line, to = self._lines.popleft()
                self._kept -= len(line)
                left_out = self._left_out
            if to in self._closed:
                continue
            try:
                written(line, to)
                if left_out and not self._lines:
                    words = f"colonnade: {left_out} lines were left out, which nobody read in time\n"
                    written(words.encode(), to)
                    with self._changed:
                        self._left_out -= left_out
            except BrokenPipeError:
                self._closed.add(to)
                with self._changed:
                    self._broken = True
                with contextlib.suppress(OSError):  # it is over
                    os.eventfd_write(self.descriptor, 1)
            except OSError:
                with self._changed:
                    self._left_out += 1


def written(line: bytes, to: TextIO) -> None:
    """Write it past the stream's own buffer: whoever waits there holds a lock that Python's end waits for."""
    try:
        descriptor = to.fileno()
    except io.UnsupportedOperation:  # a stream without one, as in a notebook
        to.write(line.decode(getattr(to, "encoding", None) or "utf-8"))
        to.flush()
        return
    while line:
        try:
            line = line[os.write(descriptor, line) :]
        except BlockingIOError:  # somebody has made it so that it does not wait
            select.select([], [descriptor], [])
