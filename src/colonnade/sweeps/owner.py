"""Who conducts which trials: every sweep has a lock in the study's folder, which the kernel drops with it.

All processes of a sweep inherit the lock, so once it can be had, nothing of that sweep is left. A sweep is
    alive    its first process lives
    dying    that is gone, and something that it started is not, for a few seconds
    dead     the lock can be had
    remote   there is no such lock here: it belongs to another machine, and only its heartbeat tells
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil


class SweepOwner:
    """This sweep, for as long as the `with` block, or a process that it started, lasts."""

    def __init__(self, folder: Path) -> None:
        self._folder = owners(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.name = secrets.token_hex(6)
        path = self._folder / f"{self.name}.lock"
        me = psutil.Process()
        # Locked before it has its name, so nobody takes it for dead.
        new = path.with_suffix(".new")
        self.descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        os.write(self.descriptor, json.dumps({"pid": me.pid, "since": me.create_time()}).encode())
        os.rename(new, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)  # what this sweep started may still hold it


def owners(folder: Path) -> Path:
    return folder / "owners"


def state(folder: Path, name: str) -> str:
    """How the sweep of this name is: alive, dying, dead or remote; see above."""
    try:
        lock = os.open(owners(folder) / f"{name}.lock", os.O_RDONLY)
    except FileNotFoundError:
        return "remote"
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return "dead"
    except BlockingIOError:
        return "alive" if _lives(os.read(lock, 4096)) else "dying"
    finally:
        os.close(lock)


def _lives(says: bytes) -> bool:
    who = json.loads(says)
    try:
        process = psutil.Process(who["pid"])
        return process.create_time() == who["since"] and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def forget(folder: Path, name: str) -> None:
    """Remove the lock of a dead sweep that owns no trial any more."""
    with contextlib.suppress(FileNotFoundError):
        (owners(folder) / f"{name}.lock").unlink()


def known(folder: Path) -> list[str]:
    """The names of all sweeps that have, or had, a lock here."""
    return [path.stem for path in owners(folder).glob("*.lock")]


@contextlib.contextmanager
def alone_with(folder: Path) -> Iterator[None]:
    """Be the only sweep in this folder that takes or gives back trials."""
    mutex = os.open(owners(folder) / "mutex", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        yield
    finally:
        os.close(mutex)
