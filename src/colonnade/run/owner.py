"""One program at a time in a directory of checkpoints.

The lock is the kernel's, so it ends with its owner however he ends; who he is stands beside it.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from colonnade.errors import CheckpointInUse, DiskFull
from colonnade.run.archive import FULL

LOCK = ".lock"
OWNER = ".owner"
# An owner writes his name right after he got the lock.
PATIENCE = 2.0


@contextlib.contextmanager
def owned(directory: Path) -> Iterator[None]:
    """Be the only one who saves into a directory; raises `CheckpointInUse` at once if another does."""
    lock = FileLock(directory / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise CheckpointInUse(str(directory), *_owner(directory)) from None
    try:
        _sign(directory)
        yield
    finally:
        (directory / OWNER).unlink(missing_ok=True)
        lock.release()


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
