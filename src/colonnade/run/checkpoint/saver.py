"""Writes checkpoints during a fit, in the background, and goes on from the last one at its start.

A save has two halves. Between two steps the values are read, which TensorFlow does without copying them;
then a thread writes them, in TensorFlow's own format, while the training goes on.
"""

import platform
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade import __version__
from colonnade.errors import DamagedCheckpoint, DiskFull, InvalidArgument, Problem, check
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.checkpoint.directory import Archive, make
from colonnade.run.checkpoint.lock import LOCK, owned
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.restore import restore
from colonnade.run.checkpoint.tensor_files import read, write
from colonnade.run.data.batches import Batches
from colonnade.run.engine.history import Record
from colonnade.run.variables.saved_state import REPLICAS, Resumable

# Seconds for which a fit that was told to end goes on towards its next join.
PATIENCE = 10.0


class Keeper:
    """The checkpoints of one fit; a context manager that owns their directory meanwhile.

    Args:
        checkpoint: where and how often.
        engine: what is saved.
        mode: how it trains, for the manifest.
        before: of each fit that the program finished with this directory, the passes through its data.
        epochs: what the fit was told; the state of a dataset's iterator is bound to it.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: Resumable,
        mode: Mapping[str, str],
        before: Sequence[int],
        epochs: int | None,
    ) -> None:
        self._checkpoint, self._engine, self._mode = checkpoint, engine, dict(mode)
        self._before, self._fit, self._epochs = list(before), len(before) + 1, epochs
        self._archive = Archive(Path(checkpoint.directory))
        self._stack = ExitStack()
        self._pending: Future[None] | None = None
        self._begin = self._last = 0
        self._latest: Record | None = None
        self.found: Manifest | None = None  # what to go on from
        self.stalled = 0.0  # seconds that steps waited for saves

    @property
    def exact(self) -> bool:
        """Whether the place in the data is kept."""
        return self._checkpoint.data == "exact"

    @property
    def seeks(self) -> bool:
        """Whether the data are brought to a saved place before the first step."""
        return self.exact and self.found is not None and self.found.fit == self._fit

    @property
    def directory(self) -> Path:
        return self._archive.directory

    @property
    def saved_step(self) -> int | None:
        """The newest step in the directory."""
        return self._archive.last()

    @property
    def over(self) -> bool:
        """Whether the saved run had this fit behind it."""
        return self.found is not None and (self.found.fit > self._fit or self.found.stopped)

    def __enter__(self) -> "Keeper":
        try:
            make(self.directory)
            (self.directory / LOCK).touch()
        except OSError as error:
            rule, fix = f"cannot be written ({error.strerror})", "Name a directory of yours"
            problem = Problem("directory", str(self.directory), rule, fix)
            raise InvalidArgument("Checkpoint()", [problem]) from None
        with ExitStack() as stack:
            self._ownership = stack.enter_context(owned(self.directory))
            self._writer = stack.enter_context(ThreadPoolExecutor(1, "colonnade-checkpoint"))
            self._archive.sweep()
            self.found = self._find()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            try:
                self._wait()
            except Exception as failed:
                if error is None:
                    raise
                error.add_note(f"Nor could the last checkpoint be written: {failed}")

    def _find(self) -> Manifest | None:
        """The manifest of the newest whole step, if this fit has to do with it."""
        if not self._checkpoint.resume and self._fit == 1 and self._archive.last() is not None:
            rule = "holds the checkpoints of a run, and resume=False does not go on from them"
            problem = Problem(
                "directory", str(self.directory), rule, "Name another directory, or move it away"
            )
            raise InvalidArgument("Checkpoint()", [problem])
        saved, damaged = self._archive.newest()
        if saved is None and damaged:
            flaws = {one.path.name: str(one.flaw) for one in damaged}
            raise DamagedCheckpoint(str(self.directory), flaws)
        for one in damaged:
            assert saved is not None
            warnings.warn(
                f"{one.path} is damaged: {one.flaw}. The run goes on from step {saved.step}.", stacklevel=2
            )
            self._archive.set_aside(one)
        if saved is None or saved.manifest is None or saved.manifest.fit < self._fit:
            return None
        self._saved = saved.path
        return saved.manifest

    def follow(self, batches: Batches) -> Batches:
        """Keep the place in these batches."""
        self.batches = batches
        return batches

    def arranged(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """The data of this fit, without what is to be skipped."""
        if self.found is None or self.over or self._checkpoint.data != "skip":
            return dataset
        return dataset.skip(self.found.step - self.found.begin)

    def start(self, step: int) -> None:
        """Before the first step: bring data and engine to the saved step, if there is one."""
        self._begin, self._last = step, step
        if self.found is not None:
            self._begin, self._last = self.found.begin, self.found.step
            if self.found.fit == self._fit:
                check("fit()", self._data_problems(self.found.data, self.batches.spec))
                saved = self.found.data
                if self.seeks or self.batches.like() is None:
                    self.batches.seek(read(self._saved, "data"), saved["passes"], saved["batches"])
                if self.found.stopped:
                    self._warn_of_stop(self.found.step)
            else:
                self.batches.pass_over(self.found.data["before"][self._fit - 1])
        batch = self.batches.like()
        if batch is None:
            return  # no data at all, of which the trainer speaks
        self._engine.prepare(batch)
        for lost in self._engine.state().lost:
            warnings.warn(f"A run that goes on from a checkpoint will not be the same: {lost}.", stacklevel=2)
        if self.found is not None:
            restore(self._engine, self._saved, self.found.devices)

    def _warn_of_stop(self, step: int) -> None:
        warnings.warn(
            f"A callback ended this fit at step {step}, and it stays ended. To train on from there, call fit "
            "once more after it; to begin anew, use another directory.",
            stacklevel=2,
        )

    def _data_problems(self, saved: Mapping[str, Any], spec: str) -> Iterator[Problem]:
        step = self.found.step if self.found else 0
        if saved["spec"] != spec:
            rule = f"has another structure than at step {step}, when it was {saved['spec']}"
            yield Problem("data", spec, rule, "Pass the same data, or use another directory")
        if self._checkpoint.data != "exact":
            return
        if saved["kind"] != "exact":
            rule = f"step {step} was saved with data={saved['kind']!r}, without the place in the data"
            yield Problem("data", "exact", rule, f"Go on with data={saved['kind']!r}")
        if saved["cardinality"] != self.batches.cardinality:
            rule = f"had {saved['cardinality']} at step {step}: the data are others"
            fix = "Pass the same data, or choose data='restart'"
            yield Problem("data", f"{self.batches.cardinality} batches", rule, fix)
        if saved["epochs"] != self._epochs:
            rule = (
                f"the run was begun with epochs={saved['epochs']}, and its place in the data is bound to that"
            )
            yield Problem("epochs", self._epochs, rule, "Finish it so; for more, call fit once more after it")

    def until_save(self, step: int) -> int:
        """How many steps from here to the next save."""
        due = (step // self._checkpoint.every + 1) * self._checkpoint.every
        return self._engine.next_join(due) - step

    def can_save(self, step: int) -> bool:
        return self._engine.next_join(step) == step

    def can_end(self, step: int, waited: float) -> bool:
        """Whether a fit that was told to end, so many seconds ago, ends here.

        After a join the saved step serves any number of devices; but a scheduler waits for 30 seconds.
        """
        return self.can_save(step) or waited > PATIENCE

    def after(self, record: Record, *, resting: bool, stopped: bool) -> None:
        """After some steps: save if it is time; raises what a save before this one came to.

        Args:
            record: what the trainer knows of itself.
            resting: whether nothing is under way beyond it.
            stopped: whether a callback ended the fit.
        """
        self._latest = record
        self.batches.note(record.step - self._begin)
        if self._pending is not None and self._pending.done():
            self._wait()
        due = record.step // self._checkpoint.every > self._last // self._checkpoint.every
        if due and resting and self.can_save(record.step):
            self._save(record, stopped=stopped)

    def finish(self, *, stopped: bool) -> None:
        """At the end of the fit: save what is not saved yet, and wait until it is on disk."""
        if self._latest is not None and self._latest.step > self._last:
            self._save(self._latest, stopped=stopped)
        self._wait()

    def _save(self, record: Record, *, stopped: bool) -> None:
        start = time.perf_counter()
        self._wait()
        state = self._engine.state()
        values = state.snapshot()
        position = self.batches.position(record.step - self._begin)
        self._last = record.step
        data = {
            "kind": self._checkpoint.data,
            "epochs": self._epochs,
            "batches": record.step - self._begin,
            "spec": self.batches.spec,
            "passes": self.batches.begun,
            "cardinality": self.batches.cardinality,
            "before": self._before,
        }
        self._pending = self._writer.submit(
            self._write, record, values, position, data, state.random, stopped
        )
        self.stalled += time.perf_counter() - start

    def _wait(self) -> None:
        """Until the save under way is on disk; raises what went wrong with it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(
        self,
        record: Record,
        values: Mapping[str, Any],
        position: Mapping[str, Any],
        data: Mapping[str, Any],
        random: frozenset[str],
        stopped: bool,
    ) -> None:
        manifest = Manifest(
            step=record.step,
            examples=record.examples,
            skipped=record.skipped,
            fit=self._fit,
            begin=self._begin,
            stopped=stopped,
            loss=record.loss,
            metrics=record.metrics,
            staleness={str(age): count for age, count in record.staleness.items()},
            schedule=_schedule(values),
            generators=_generators(values, random, len(self._engine.devices)),
            data=dict(data),
            devices=len(self._engine.devices),
            mode=self._mode,
            versions=_versions(),
            written=datetime.now(UTC).isoformat(timespec="seconds"),
        )

        def files(folder: Path) -> None:
            try:
                write(folder, "values", values)
                write(folder, "data", position)
            except (tf.errors.ResourceExhaustedError, tf.errors.OutOfRangeError):  # no room, too large
                raise DiskFull(str(self.directory), record.step) from None
            self._ownership.check(record.step)

        self._ownership.check(record.step)
        try:
            self._archive.commit(manifest, files)
            self._archive.prune(self._checkpoint.keep)
        except (OSError, tf.errors.OpError):
            self._ownership.check(record.step)  # says more than what came of it
            raise


def _schedule(values: Mapping[str, Any]) -> dict[str, Any]:
    """Where the optimizer is: its own count of steps, and its learning rate where that is a variable."""
    words = ("iteration", "learning_rate")
    return {
        name: value.numpy().item()
        for name, value in values.items()
        if name.startswith("optimizer/") and name.rpartition("/")[2] in words
    }


def _generators(
    values: Mapping[str, Any], random: frozenset[str], num_replicas: int
) -> dict[str, list[list[int]]]:
    return {
        name: [values[f"{REPLICAS}{i}/{name}"].numpy().ravel().tolist() for i in range(num_replicas)]
        for name in sorted(random)
    }


def _versions() -> dict[str, str]:
    return {
        "colonnade": __version__,
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
