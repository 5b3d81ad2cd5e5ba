"""The directory of checkpoints: lists, publishes and deletes saved steps; each is whole or not there.

    run/
      step-000000000400/        committed: it got this name by a rename, after everything in it was on disk
      .new-000000000500-1f0e/   being written; nobody counts it
      .old-000000000100-a7c3/   being removed; nobody counts it
      step-000000000300.damaged set aside: it was found damaged when a run went on from an older one

A process that dies at any moment leaves a `.new-` or an `.old-` directory behind at most, which the next
owner of the directory removes. The digits at its end are those of one save: a program that has lost the
directory, and does not know it yet, cannot take for its own what the new owner writes.
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from colonnade.errors import DiskFull, UnreadCheckpoint
from colonnade.run.checkpoint.manifest import MANIFEST, SEAL, Flaw, Manifest, Unread, digest, examine, seal

STEP = re.compile(r"step-(\d{12})")
ASIDE = re.compile(r"step-(\d{12})\.damaged")
# Before there were digits at their end, `.new-` and `.old-` had none.
LEFT_OVER = re.compile(r"\.(new|old)-\d{12}(-[0-9a-f]{4})?|\.(owner|fence)-[0-9a-f]{8}")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Saved:
    """A directory that has the name of a saved step, with its manifest or with what is wrong with it."""

    path: Path
    step: int
    manifest: Manifest | None
    flaw: str | None

    @property
    def size(self) -> int:
        """Bytes on disk; links are not followed."""
        if self.path.is_symlink() or not self.path.is_dir():
            return 0
        try:
            with os.scandir(self.path) as files:
                return sum(file.stat(follow_symlinks=False).st_size for file in files)
        except FileNotFoundError:  # its training has just removed it
            return 0


class Archive:
    """The saved steps in one directory.

    Args:
        directory: where they are; it need not exist before the first save.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.expanduser().resolve()

    def saved(self, *, thorough: bool = False) -> list[Saved]:
        """Every committed step, oldest first, and what was set aside; thorough reads every byte."""
        matches = [(STEP.fullmatch(name) or ASIDE.fullmatch(name), name) for name in self._names()]
        steps = sorted((int(match[1]), name) for match, name in matches if match)
        saved = [self._listed(step, name, thorough=thorough) for step, name in steps]
        # A training that goes on takes its name from an old step before it removes anything in it.
        return [one for one in saved if one.flaw is None or os.path.lexists(one.path)]

    def newest(self) -> tuple[Saved | None, list[Saved]]:
        """The newest step that is whole to the last byte, and the damaged ones that are newer.

        Raises `UnreadCheckpoint` if one that may be whole cannot be read.
        """
        damaged: list[Saved] = []
        for step, name in sorted(self._steps(), reverse=True):
            try:
                saved = self._examined(step, name, thorough=True)
            except Unread as reason:
                raise UnreadCheckpoint(str(self.directory / name), str(reason)) from None
            if saved.flaw is None:
                return saved, damaged
            damaged.append(saved)
        return None, damaged

    def last(self) -> int | None:
        """The newest step by its name, without a look into it; None if nothing is saved."""
        return max((step for step, _ in self._steps()), default=None)

    def commit(self, manifest: Manifest, write: Callable[[Path], None]) -> None:
        """Add a step, whole or not at all.

        Args:
            manifest: what it says of itself; the list of files is added here.
            write: writes the files into the directory that it is given.
        """
        new = self._unnamed("new", manifest.step)
        try:
            new.mkdir()
            write(new)
            paths = sorted(new.iterdir())
            with ThreadPoolExecutor() as disk:  # which takes several files at a time
                synced = disk.map(sync, paths)
                files = {path.name: digest(path) for path in paths}
                _all(synced)
                text = replace(manifest, files=files).to_json().encode()
                _all(disk.map(_write, (new / MANIFEST, new / SEAL), (text, seal(text))))
            sync(new)
            os.rename(new, self.directory / f"step-{manifest.step:012d}")
            sync(self.directory)
        except BaseException as error:
            _remove(new)
            if isinstance(error, OSError) and error.errno in FULL:
                raise DiskFull(str(self.directory), manifest.step) from None
            raise

    def prune(self, keep: int | None) -> None:
        """Remove all but the newest `keep` steps; None keeps all."""
        if keep is None:
            return
        for step, name in sorted(self._steps())[:-keep]:
            old = self._unnamed("old", step)
            # Out of sight first: a step that is half removed would look like a damaged one.
            os.rename(self.directory / name, old)
            _remove(old)

    def sweep(self) -> None:
        """Remove what a process left that died while it saved; only for the owner of the directory."""
        for name in self._names():
            if LEFT_OVER.fullmatch(name):
                _remove(self.directory / name)

    def set_aside(self, saved: Saved) -> None:
        """Take its name from a damaged step, so that the run can save that step again."""
        aside = saved.path.with_name(f"step-{saved.step:012d}.damaged")
        _remove(aside)
        os.rename(saved.path, aside)
        sync(self.directory)

    def _unnamed(self, what: str, step: int) -> Path:
        """A name that nobody counts and nobody else has."""
        while os.path.lexists(path := self.directory / f".{what}-{step:012d}-{secrets.token_hex(2)}"):
            pass
        return path

    def _steps(self) -> list[tuple[int, str]]:
        matches = [STEP.fullmatch(name) for name in self._names()]
        return [(int(match[1]), match[0]) for match in matches if match]

    def _listed(self, step: int, name: str, *, thorough: bool) -> Saved:
        try:
            return self._examined(step, name, thorough=thorough)
        except Unread as reason:
            return Saved(self.directory / name, step, None, str(reason))

    def _examined(self, step: int, name: str, *, thorough: bool) -> Saved:
        path = self.directory / name
        try:
            manifest = examine(path, thorough=thorough)
            if manifest.step != step:
                raise Flaw(f"{MANIFEST} is that of step {manifest.step}")
            for name in manifest.odd():
                raise Flaw(f"{MANIFEST} has what no training has: {name}={getattr(manifest, name)!r:.99}")
        except Flaw as flaw:
            return Saved(path, step, None, str(flaw))
        return Saved(path, step, manifest, None)

    def _names(self) -> list[str]:
        return os.listdir(self.directory) if self.directory.is_dir() else []


def make(directory: Path) -> None:
    """Make a directory, and those above it, so that their names are on disk."""
    new = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in reversed(new):
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _all(done: Iterable[None]) -> None:
    """Wait for what threads do; raises what went wrong there."""
    for _ in done:
        pass


def _write(path: Path, text: bytes) -> None:
    with path.open("xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    """Remove a directory or a link, if it is there; a link is not followed."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
