"""Locks a directory of checkpoints, so that only one program at a time saves into it.

The lock is the kernel's, so it ends with its owner however he ends; who he is stands beside it. It is a lock
on a file, whatever its name: if the file is removed, or moved with its directory, another program can lock
a new one of that name. So an owner looks whether it is still his before he writes.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from colonnade.errors import CheckpointInUse, DiskFull, LostCheckpoint
from colonnade.run.checkpoint.directory import FULL

LOCK = ".lock"
OWNER = ".owner"
# Which start of a cluster saves here. A machine that is cut off from shared storage may lose its lock to a
# later start, and not know it when it comes back: it looks here before it writes.
FENCE = ".fence"
# An owner writes his name right after he got the lock.
PATIENCE = 2.0


@dataclass(frozen=True)
class Ownership:
    """A directory, and the file in it that is locked."""

    directory: Path
    inode: tuple[int, int]  # nobody else can have it while the file is open
    token: str | None = None  # of the start of a cluster that saves, if it is one

    @property
    def lost(self) -> str | None:
        """What has become of the lock, if it is not in its place any more."""
        if not self.directory.is_dir():
            return "the directory was removed or moved"
        if self.token is not None and (other := _fenced(self.directory)) != self.token:
            return f"another start took it over ({other.partition(',')[0]})"
        with contextlib.suppress(FileNotFoundError):
            if _inode(self.directory / LOCK) == self.inode:
                return None
        return f"the file {LOCK} in it was removed"

    def check(self, step: int) -> None:
        """Raise `LostCheckpoint` if another program may save there by now."""
        if (what := self.lost) is not None:
            raise LostCheckpoint(str(self.directory), step, what)


@contextlib.contextmanager
def owned(directory: Path, generation: int | None = None) -> Iterator[Ownership]:
    """Be the only one who saves into a directory; raises `CheckpointInUse` at once if another does.

    Of a cluster the `generation` is told, how often it was started: what comes back of an earlier start
    that had lost its lock cannot save any more.
    """
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CheckpointInUse(str(directory), *_owner(directory)) from None
    try:
        token = None if generation is None else _fence(directory, generation)
        ownership = Ownership(directory, _inode(directory / LOCK), token)
        _sign(directory)
        try:
            yield ownership
        finally:
            if ownership.lost is None:  # what stands there now may be another's
                (directory / OWNER).unlink(missing_ok=True)
    finally:
        lock.release()


def _fence(directory: Path, generation: int) -> str:
    """Say that this start of a cluster saves here, so that no other one does that does not know of it."""
    token = f"start {generation} of its machines, {secrets.token_hex(8)}"
    new = directory / f"{FENCE}-{secrets.token_hex(4)}"
    new.write_text(token, encoding="ascii")
    os.replace(new, directory / FENCE)
    return token


def _fenced(directory: Path) -> str:
    """Who said last that he saves here."""
    with contextlib.suppress(FileNotFoundError):
        return (directory / FENCE).read_text(encoding="ascii", errors="replace")
    return "nobody"


def _inode(path: Path) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_dev, facts.st_ino


def _sign(directory: Path) -> None:
    new = directory / f"{OWNER}-{secrets.token_hex(4)}"
    try:
        new.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}), encoding="utf-8")
        os.replace(new, directory / OWNER)
    except OSError as error:
        new.unlink(missing_ok=True)
        if error.errno in FULL:
            raise DiskFull(str(directory), None) from None
        raise


def _owner(directory: Path) -> tuple[int | None, str | None]:
    """The pid and host of the owner; a name that a dead one left is not taken for his."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads((directory / OWNER).read_text(encoding="utf-8"))
            pid, host = int(said["pid"]), str(said["host"])
            if host != socket.gethostname() or psutil.pid_exists(pid):
                return pid, host
        time.sleep(0.02)
    return None, None
