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
from colonnade.run.checkpoint.program_exit import leave_for_later

LOCK = ".lock"
OWNER = ".owner"
# Whose turn it is to save here. A machine that is cut off from shared storage may lose its lock to a later
# start, on one machine or on several, and not know it when it comes back: it looks here before it writes.
FENCE = ".fence"
# An owner writes his name right after he got the lock; shared storage may show it a moment later elsewhere.
PATIENCE = 2.0
# For how long a start after another waits for the lock. Of a machine that died hard, or was cut off, shared
# storage keeps the locks for a while: NFS for 90 s, if it is not told otherwise.
RESTARTED = 120.0


@dataclass(frozen=True)
class Ownership:
    """A directory, and the file in it that is locked."""

    directory: Path
    inode: tuple[int, int]  # nobody else can have it while the file is open
    token: str  # of this owner alone; it is in the fence

    @property
    def lost(self) -> str | None:
        """What has become of the lock, if it is not in its place any more."""
        if not self.directory.is_dir():
            return "the directory was removed or moved"
        other = _fenced(self.directory)
        if other not in (None, self.token):
            return f"another start took it over ({other.partition(',')[0]})"
        # Where both are gone, as in a new directory of that name, the lock is told of: it is the one that
        # a user knows.
        if not self._is_locked:
            return f"the file {LOCK} in it was removed"
        return f"the file {FENCE} in it was removed" if other is None else None

    @property
    def _is_locked(self) -> bool:
        """Whether the file of that name is still the one that is locked."""
        with contextlib.suppress(FileNotFoundError):
            return _inode(self.directory / LOCK) == self.inode
        return False

    def check(self, step: int) -> None:
        """Raise `LostCheckpoint` if another program may save there by now."""
        if (what := self.lost) is not None:
            raise LostCheckpoint(str(self.directory), step, what)


@contextlib.contextmanager
def owned(directory: Path, generation: int | None = None) -> Iterator[Ownership]:
    """Be the only one who saves into a directory; raises `CheckpointInUse` if another does.

    What comes back of an earlier start that had lost its lock cannot save any more. Of a cluster the
    `generation` is told, how often it was started, for the words that the earlier start is given. A first
    start is refused at once. A later one waits, for an earlier one of its own may have the lock yet.
    """
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=RESTARTED if generation else 0)
    except Timeout:
        raise CheckpointInUse(str(directory), *_owner(directory)) from None
    try:
        token = _fence(directory, generation)
        ownership = Ownership(directory, _inode(directory / LOCK), token)
        _sign(directory)
        try:
            yield ownership
        finally:
            if ownership.lost is None:  # what stands there now may be another's
                (directory / OWNER).unlink(missing_ok=True)
    finally:
        lock.release()


@contextlib.contextmanager
def claimed(directory: Path, generation: int | None) -> Iterator[Ownership]:
    """The same for a program: a later start that waited in vain ends it, and asks for another one."""
    with contextlib.ExitStack() as stack:
        try:
            ownership = stack.enter_context(owned(directory, generation))
        except CheckpointInUse as error:
            if not generation:
                raise
            leave_for_later(error)
        yield ownership


def is_fenced_by(directory: Path, token: str) -> bool:
    """Whether this is the directory in which an owner on another machine has left his token."""
    deadline = time.monotonic() + PATIENCE
    while _fenced(directory) != token:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _fence(directory: Path, generation: int | None) -> str:
    """Say that this start saves here, so that no other one does that does not know of it."""
    who = "a program alone" if generation is None else f"start {generation} of its machines"
    token = f"{who}, {secrets.token_hex(8)}"
    _put(directory, FENCE, token)
    return token


def _fenced(directory: Path) -> str | None:
    """Who said last that he saves here."""
    with contextlib.suppress(FileNotFoundError):
        return (directory / FENCE).read_text(encoding="utf-8", errors="replace")
    return None


def _inode(path: Path) -> tuple[int, int]:
    facts = os.stat(path)
    return facts.st_dev, facts.st_ino


def _sign(directory: Path) -> None:
    _put(directory, OWNER, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))


def _put(directory: Path, name: str, text: str) -> None:
    """Write a small file, whole or not at all."""
    new = directory / f"{name}-{secrets.token_hex(4)}"
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, directory / name)
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
