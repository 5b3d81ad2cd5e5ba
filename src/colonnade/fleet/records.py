"""Files of leases in a shared directory, each of which lives as long as the process that holds it.

A record is two files: `7.lock`, locked by its owner for as long as it lives, and `7.json`, which says
what it is about. The kernel drops the lock when the owner dies, however it dies, so nothing here has
to be cleaned up to stay true: a record whose lock can be had is dead. And one that is locked is alive,
whatever became of its text: who cannot be understood may hold anything.

Why `flock` and not a lock-file library. The directory itself is the mutex, so there is no mutex file
to create, lose or be denied; a record is locked before it gets its name, so nobody sees it unlocked;
and the lock is inherited by the program that was started under it, so it outlives a killed launcher.

The directory is shared by users who need not trust each other, hence, everywhere below: files are
made with O_EXCL (a sticky directory may forbid O_CREAT on another's file) and opened with O_NOFOLLOW
(a link planted there leads nowhere); others' files are only read, so they need not be writable; what
a record says counts only if it belongs to the owner of its lock.
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import signal
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.errors import InvalidArgument, Problem

# The mutex is held for milliseconds; one that is held this long belongs to a stopped process.
PATIENCE = 10.0
LARGEST = 2**20  # bytes of a record that are read
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# Stopped or interrupted half-way, a process would keep everybody else waiting.
DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


@dataclass(frozen=True)
class LeaseRecord:
    """A record whose owner lives. `uid` is that of the file's owner, which nobody can forge.

    `says` is None where the text is missing, damaged, or not the owner's.
    """

    number: int
    uid: int
    says: Mapping[str, Any] | None


class Records:
    """The records in one directory, for a process that is alone with them; see `alone`."""

    def __init__(self, directory: int) -> None:
        self._directory = directory

    def live(self) -> tuple[LeaseRecord, ...]:
        """The records whose owners live, oldest first. What dead ones left is removed if allowed."""
        live = []
        names = set(os.listdir(self._directory))
        for name in names:
            number, _, kind = name.partition(".")
            if kind == "lock" and number.isdecimal():
                record = self._read(int(number))
                if record is None:
                    self._remove(name, f"{number}.json")
                else:
                    live.append(record)
            elif kind == "new" or (kind == "json" and f"{number}.lock" not in names):
                self._remove(name)  # left by a process that died while it was alone here
        return tuple(sorted(live, key=lambda record: record.number))

    def add(self, says: Mapping[str, Any]) -> tuple[int, int]:
        """A new record, later than every other: its number, and the descriptor that keeps it alive."""
        names = (re.fullmatch(r"(\d+)\.(lock|json)", name) for name in os.listdir(self._directory))
        number = max((int(name[1]) for name in names if name), default=0) + 1
        self.write(number, says)
        new, descriptor = self._create()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._rename(new, f"{number}.lock")
        except OSError:
            os.close(descriptor)
            raise
        return number, descriptor

    def write(self, number: int, says: Mapping[str, Any]) -> None:
        """Say something else in a record of one's own; a reader sees the old or the new, whole."""
        new, descriptor = self._create()
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(says, file)
        self._rename(new, f"{number}.json")

    def remove(self, number: int, descriptor: int) -> None:
        """Remove one's own record; the lock's name goes first, because without it there is no record.

        Where the directory was emptied meanwhile, the number may have become another's.
        """
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(f"{number}.lock", dir_fd=self._directory, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(descriptor)):
                self._remove(f"{number}.lock", f"{number}.json")

    def _create(self) -> tuple[str, int]:
        name = f"{secrets.token_hex(8)}.new"
        descriptor = os.open(name, CREATE, 0o644, dir_fd=self._directory)
        os.fchmod(descriptor, 0o644)  # others must be able to read it, whatever the umask
        return name, descriptor

    def _rename(self, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def _remove(self, *names: str) -> None:
        for name in names:
            # In a sticky directory the dead records of others stay until their owner comes by again.
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._directory)

    def _read(self, number: int) -> LeaseRecord | None:
        """A record, or None if its owner is dead."""
        name = f"{number}.lock"
        try:
            lock = self._open(name)
        except PermissionError:  # closed to us, so we cannot know that he is dead
            owner = os.stat(name, dir_fd=self._directory, follow_symlinks=False).st_uid
            return LeaseRecord(number, owner, None)
        if lock is None:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            owner = os.fstat(lock).st_uid
            return LeaseRecord(number, owner, self._text(f"{number}.json", owner))
        finally:
            os.close(lock)

    def _text(self, name: str, owner: int) -> Mapping[str, Any] | None:
        """What a record of this owner says, if it can be read."""
        try:
            text = self._open(name)
        except PermissionError:
            return None
        if text is None:
            return None
        with open(text, "rb") as file:
            if os.fstat(text).st_uid != owner:
                return None
            try:
                says = json.loads(file.read(LARGEST))
            except (ValueError, RecursionError):
                return None
        return says if isinstance(says, dict) else None

    def _open(self, name: str) -> int | None:
        try:
            descriptor = os.open(name, READ, dir_fd=self._directory)
        except PermissionError:
            raise
        except OSError:  # gone meanwhile, or a link: not one of ours
            return None
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        return None


@contextlib.contextmanager
def alone(path: Path) -> Iterator[Records]:
    """Be the only process that looks at or changes the records in `path`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED)
    try:
        directory = _lock(path)
        try:
            yield Records(directory)
        except OSError as error:
            fix = f"Make room, or ask its owner for: chmod 1777 {path}"
            raise _unusable(path, f"it cannot be written ({error.strerror})", fix) from None
        finally:
            os.close(directory)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _lock(path: Path) -> int:
    deadline = time.monotonic() + PATIENCE
    while True:
        directory = _open_directory(path)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(directory), os.stat(path)):
                return directory
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(directory)
                rule = f"another process has kept it locked for {PATIENCE:.0f} s; it may be stopped"
                raise _unusable(path, rule, f"Find it with: fuser {path}") from None
        except FileNotFoundError:
            pass  # removed between opening and locking: make it again
        except OSError as error:
            os.close(directory)
            rule = f"it cannot be locked ({error.strerror}), as on network file systems"
            raise _unusable(path, rule, "Name a directory on a local disk") from None
        os.close(directory)
        time.sleep(0.002)


def _open_directory(path: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        _make(path)
        return _open_directory(path)
    except PermissionError:
        raise _unusable(path, "it is closed to this user", f"Ask its owner for: chmod 1777 {path}") from None
    except OSError:
        rule = "must be a directory, and not a link to one"
        raise _unusable(path, rule, "Name the directory itself") from None


def _make(path: Path) -> None:
    # Open to every user from its first moment; sticky, so that each can remove only what is his.
    mask = os.umask(0)
    try:
        path.mkdir(mode=0o1777)
    except FileExistsError:
        pass  # another process was quicker
    except OSError as error:
        fix = "Name a directory whose parent exists and can be written"
        raise _unusable(path, f"it cannot be made ({error.strerror})", fix) from None
    finally:
        os.umask(mask)


def _unusable(path: Path, rule: str, fix: str) -> InvalidArgument:
    return InvalidArgument("the directory of leases", [Problem("leases", str(path), rule, fix)])
