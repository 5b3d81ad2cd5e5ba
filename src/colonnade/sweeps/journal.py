"""The file that keeps a study by default: Optuna's journal, written so that kills and a full disk do no harm.

The lines are Optuna's own, so everything that reads its journals reads this one. What is different is the
writing. Optuna marks the file as locked by a second file, which a killed process leaves behind and everybody
else waits 30 s for; here the kernel locks it and drops the lock with the process. A line of which only a part
was written, on a full disk, makes Optuna's journal unreadable once another line follows; here that part is
cut off before anything is appended.
"""

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.storages.journal import JournalFileBackend


class KernelLockedJournal(JournalFileBackend):
    """A journal file whose lines are written whole, by one process at a time."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._path = path

    def append_logs(self, logs: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        # Without O_CREAT: a journal that was taken away must not begin anew.
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            whole = _cut_torn_line(file)
            try:
                _write(file, text.encode())
            except OSError:
                os.ftruncate(file, whole)
                raise
            # A result is on disk before it counts. The rest has to outlive this process only.
            if any(log.get("values") for log in logs):
                os.fsync(file)
        finally:
            os.close(file)


def _write(file: int, text: bytes) -> None:
    while text:
        text = text[os.write(file, text) :]


def _cut_torn_line(file: int) -> int:
    """Remove a last line without an end, as a full disk leaves one; returns the size of the rest."""
    size = os.fstat(file).st_size
    whole = size
    while whole and os.pread(file, 1, whole - 1) != b"\n":
        start = max(0, whole - 4096)
        before = os.pread(file, whole - start, start).rfind(b"\n")
        whole = start + before + 1 if before >= 0 else start
    if whole < size:
        os.ftruncate(file, whole)
    return whole
