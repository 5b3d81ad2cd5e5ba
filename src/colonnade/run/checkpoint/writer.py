"""Writes a step of a training to disk, in a thread of its own, while the training goes on."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.errors import DiskFull
from colonnade.run.checkpoint.directory import Archive
from colonnade.run.checkpoint.lock import Ownership
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.tensor_files import write


@dataclass(frozen=True)
class UnwrittenStep:
    """What a step of a training is made of on disk."""

    step: int
    described: Callable[[], Manifest]  # makes its manifest; called in the thread
    values: Mapping[str, Any]  # of the variables
    position: Mapping[str, Any]  # the place in the data


class Writer:
    """Writes one step at a time into a directory, which it sees to be still its owner's.

    Args:
        archive: the directory.
        ownership: of the directory.
        keep: how many of the newest steps are kept; None keeps all.
        thread: where to write.
    """

    def __init__(self, archive: Archive, ownership: Ownership, keep: int | None, thread: Executor) -> None:
        self._archive, self._ownership, self._keep, self._thread = archive, ownership, keep, thread
        self._pending: Future[None] | None = None

    def begin(self, unwritten: UnwrittenStep) -> None:
        """Begin to write a step; the one before it must be on disk (`wait`)."""
        assert self._pending is None
        self._pending = self._thread.submit(self._write, unwritten)

    def wait(self) -> None:
        """Until the step under way is on disk; raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def raise_failure(self) -> None:
        """Raise what went wrong with the step under way, if that is known by now."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def _write(self, unwritten: UnwrittenStep) -> None:
        step = unwritten.step

        def files(folder: Path) -> None:
            try:
                write(folder, "values", unwritten.values)
                write(folder, "data", unwritten.position)
            except (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError):  # no room, too large
                raise DiskFull(str(self._archive.directory), step) from None
            self._ownership.check(step)

        manifest = unwritten.described()
        self._ownership.check(step)
        try:
            self._archive.commit(manifest, files)
        except (OSError, tf.errors.OpError):
            self._ownership.check(step)  # says more than what came of it
            raise
        self._prune()

    def _prune(self) -> None:
        """Remove what is older than is kept, while the directory is still its owner's.

        If it is not any more, what is old here may be all that another has. The step is on disk, so the next
        one tells of the loss.
        """
        if self._ownership.lost is None:
            try:
                self._archive.prune(self._keep)
            except OSError:
                if self._ownership.lost is None:
                    raise
