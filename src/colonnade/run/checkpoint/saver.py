"""Decides when a fit is saved and what, and goes on from the last save at its start; `writer` writes it.

A save has two halves. Between two steps the values are read, which TensorFlow does without copying them;
then a thread writes them, in TensorFlow's own format, while the training goes on.
"""

import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from colonnade import __version__
from colonnade.errors import DamagedCheckpoint, InvalidArgument, Problem, check
from colonnade.hardware.profile import mark
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.checkpoint.directory import Archive, make
from colonnade.run.checkpoint.lock import LOCK, claimed, is_fenced_by
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.program_exit import interactive, leave
from colonnade.run.checkpoint.restore import restore
from colonnade.run.checkpoint.tensor_files import read
from colonnade.run.checkpoint.writer import UnwrittenStep, Writer
from colonnade.run.data.batches import Batches
from colonnade.run.data.fit_data import FitData
from colonnade.run.data.iterator_state import other_parts
from colonnade.run.engine.history import Record
from colonnade.run.engine.protocols import Steps, Stream
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.sync.same_training import one_of_all, replicas_of_all
from colonnade.run.variables.saved_state import REPLICAS, Resumable

# Seconds for which a fit that was told to end goes on towards its next join.
PATIENCE = 10.0


class Save(NamedTuple):
    """A save that was begun."""

    step: int
    stalled: float  # seconds that steps waited for it
    bytes: int  # of all variables


class Saver:
    """The checkpoints of one fit; a context manager that owns their directory meanwhile.

    Args:
        checkpoint: where and how often.
        engine: what is saved.
        mode: how it trains, for the manifest.
        before: of each fit that the program finished with this directory, the passes through its data;
            this fit is added when it has ended.
        epochs: what the fit was told; the state of a dataset's iterator is bound to it.
        more: tensors to be kept beside the place in the data, asked for at every save (see `found`).
        peers: the machines that train together, of which the first one writes; all read.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        engine: Resumable,
        mode: Mapping[str, str],
        before: list[int],
        epochs: int | None,
        *,
        more: Callable[[], Mapping[str, Any]] = dict,
        peers: Peers = ALONE,
    ) -> None:
        self._checkpoint, self._engine, self._mode = checkpoint, engine, dict(mode)
        self._more = more
        self._before, self._fit, self._epochs = before, len(before) + 1, epochs
        self._peers = peers
        # Of the data, one for each machine; 1 where each reads all of them.
        self._parts = len(self._peers.devices) if self._peers.sharded else 1
        self._archive = Archive(Path(checkpoint.directory))
        self._directory = self._archive.directory
        self._stack = ExitStack()
        self._begin = self._last = 0
        self._latest: Record | None = None
        self._saved: Manifest | None = None  # what to go on from
        self.stalled = 0.0  # seconds that steps waited for saves
        self.saves: list[Save] = []

    @property
    def over(self) -> bool:
        """Whether the saved run had this fit behind it."""
        return self._saved is not None and (self._saved.fit > self._fit or self._saved.stopped)

    def __enter__(self) -> "Saver":
        try:
            make(self._directory)
            if self._peers.is_first:
                (self._directory / LOCK).touch()
        except OSError as error:
            rule, fix = f"cannot be written ({error.strerror})", "Name a directory of yours"
            problem = Problem("directory", str(self._directory), rule, fix)
            raise InvalidArgument("Checkpoint()", [problem]) from None
        token = None
        with ExitStack() as stack:
            if self._peers.is_first:
                ownership = stack.enter_context(claimed(self._directory, self._peers.generation))
                thread = stack.enter_context(ThreadPoolExecutor(1, "colonnade-checkpoint"))
                self._writer = Writer(self._archive, ownership, self._checkpoint.keep, thread)
                self._archive.sweep()
                self._saved, token = self._find(), ownership.token
            if self._peers.several:
                self._saved = self._found_by_first(token)
            self._stack = stack.pop_all()
        return self

    def _found_by_first(self, token: str | None) -> Manifest | None:
        """What all machines go on from: the step that the first one found, where its token is."""
        own = [self._saved.step if self._saved is not None else None, token]
        step, token = self._peers.exchange("the saved step to go on from", own)[0]
        path, saved = self._archive.directory, None
        if not self._peers.is_first and step is not None:
            same = [one for one in self._archive.saved() if one.step == step and one.manifest is not None]
            saved, path = (same[0].manifest, same[0].path) if same else (None, path)
        here = saved is not None or step is None
        shared = self._peers.is_first or (is_fenced_by(self._directory, str(token)) and here)
        fix = "Name a directory that all machines share"
        self._peers.agree("Checkpoint()", {"directory": "shared" if shared else "not the same"}, fix)
        if self._peers.is_first:
            return self._saved
        self._folder = path
        return saved

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if not self._peers.is_first:
                return
            try:
                self._writer.wait()
            except Exception as failed:
                if error is None:
                    raise
                error.add_note(f"Nor could the last checkpoint be written: {failed}")

    def _find(self) -> Manifest | None:
        """The manifest of the newest whole step, if this fit has to do with it."""
        if not self._checkpoint.resume and self._fit == 1 and self._archive.last() is not None:
            rule = "holds the checkpoints of a run, and resume=False does not go on from them"
            problem = Problem(
                "directory", str(self._directory), rule, "Name another directory, or move it away"
            )
            raise InvalidArgument("Checkpoint()", [problem])
        saved, damaged = self._archive.newest()
        if saved is None and damaged:
            flaws = {one.path.name: str(one.flaw) for one in damaged}
            raise DamagedCheckpoint(str(self._directory), flaws)
        for one in damaged:
            assert saved is not None
            warnings.warn(
                f"{one.path} is damaged: {one.flaw}. The run goes on from step {saved.step}.", stacklevel=2
            )
            self._archive.set_aside(one)
        if saved is None or saved.manifest is None or saved.manifest.fit < self._fit:
            return None
        self._folder = saved.path
        return saved.manifest

    @property
    def found(self) -> Mapping[str, Any]:
        """What is beside the place in the data of the saved step; empty where there is none."""
        return {} if self._saved is None else read(self._folder, "data")

    def stream(self, loop: Steps, data: FitData, limit: int | None) -> Stream:
        """The steps of the fit, of which the place in the data is kept; not more than are held (`hold`)."""
        return loop.along(self.batches(data, limit))

    def batches(self, data: FitData, most: int | None = None) -> Batches:
        """The batches of the fit, of which the place is kept."""
        exact = self._checkpoint.data == "exact"
        # Where the data are brought to a saved place, nothing may be fetched before.
        self._seeks = exact and self._saved is not None and self._saved.fit == self._fit
        self._batches = data.batches(self._unseen(data), exact=exact, ahead=not self._seeks, most=most)
        self._stack.callback(self._batches.close)
        return self._batches

    def _unseen(self, data: FitData) -> tf.data.Dataset:
        """The data of this fit, without what is to be skipped; passes are gone through in `_go_to`."""
        if self._saved is None or self.over or self._checkpoint.data != "skip" or data.passes > 1:
            return data.dataset
        return data.dataset.skip(self._saved.step - self._saved.begin)

    def start(self, step: int) -> Manifest | None:
        """Before the first step: bring data and engine to the saved step; what it says, if there is one."""
        self._begin, self._last = step, step
        if self._saved is not None:
            self._begin, self._last = self._saved.begin, self._saved.step
            self._go_to(self._saved)
        batch = self._batches.like()
        everyone = self._peers.exchange("the first batch", batch is not None)
        if batch is None or not all(everyone):
            return None  # no data at all, of which the fit speaks
        self._engine.prepare(batch)
        for lost in self._engine.state().lost:
            warnings.warn(f"A run that goes on from a checkpoint will not be the same: {lost}.", stacklevel=2)
        if self._saved is not None:
            restore(self._engine, self._folder, self._saved.devices)
        return self._saved

    def _go_to(self, saved: Manifest) -> None:
        """Bring the data to the place of a saved step."""
        if saved.fit != self._fit:
            self._batches.pass_over(saved.data["before"][self._fit - 1])
            return
        check("fit()", self._data_problems(saved, self._batches.spec))
        if self._seeks or self._batches.like() is None:
            self._batches.seek(self.found, saved.data["passes"], saved.data["batches"])
        if self._checkpoint.data == "skip" and self._batches.passes > 1:
            for _ in range(saved.data["batches"]):
                self._batches.next()
        if saved.stopped:
            self._warn_of_stop(saved.step)

    def _warn_of_stop(self, step: int) -> None:
        warnings.warn(
            f"A callback ended this fit at step {step}, and it stays ended. To train on from there, call fit "
            "once more after it; to begin anew, use another directory.",
            stacklevel=2,
        )

    def _data_problems(self, manifest: Manifest, spec: str) -> Iterator[Problem]:
        step, saved = manifest.step, manifest.data
        if saved["spec"] != spec:
            rule = f"has another structure than at step {step}, when it was {saved['spec']}"
            yield Problem("data", spec, rule, "Pass the same data, or use another directory")
        if self._checkpoint.data == "skip" and (before := saved.get("parts", self._parts)) != self._parts:
            yield other_parts(step, before, self._parts)
        if self._checkpoint.data != "exact":
            return
        if saved["kind"] != "exact":
            rule = f"step {step} was saved with data={saved['kind']!r}, without the place in the data"
            yield Problem("data", "exact", rule, f"Go on with data={saved['kind']!r}")
        if saved["cardinality"] != self._batches.cardinality:
            rule = f"had {saved['cardinality']} at step {step}: the data are others"
            fix = "Pass the same data, or choose data='restart'"
            yield Problem("data", f"{self._batches.cardinality} batches", rule, fix)
        if saved["epochs"] != self._epochs:
            rule = (
                f"the run was begun with epochs={saved['epochs']}, and its place in the data is bound to that"
            )
            yield Problem("epochs", self._epochs, rule, "Finish it so; for more, call fit once more after it")

    def until_save(self, step: int) -> int:
        """How many steps from here to the next save."""
        due = (step // self._checkpoint.every + 1) * self._checkpoint.every
        return self._engine.next_join(due) - step

    def _can_save(self, step: int) -> bool:
        return self._engine.next_join(step) == step

    def can_end(self, step: int, waited: float) -> bool:
        """Whether a fit that was told to end, so many seconds ago, ends here.

        After a join the saved step serves any number of devices; but a scheduler waits for 30 seconds.
        """
        return self._can_save(step) or waited > PATIENCE

    def after(self, record: Record, *, resting: bool, stopped: bool) -> None:
        """After some steps: save if it is time; raises what a save before this one came to.

        Args:
            record: what the trainer knows of itself.
            resting: whether nothing is under way beyond it.
            stopped: whether a callback ended the fit.
        """
        self._latest = record
        self._batches.note(record.step - self._begin)
        if self._peers.is_first:
            self._writer.raise_failure()
        due = record.step // self._checkpoint.every > self._last // self._checkpoint.every
        if due and resting and self._can_save(record.step):
            self._save(record, stopped=stopped)

    def finish(self, *, stopped: bool) -> None:
        """At the end of the fit: save what is not saved yet, and wait until it is on disk."""
        if self._latest is not None and self._latest.step > self._last:
            self._save(self._latest, stopped=stopped)
        if self._peers.is_first:
            self._writer.wait()

    def ended(self, *, interrupted: bool) -> None:
        """After the fit: it counts as finished, or the program ends with what is saved."""
        if not interrupted:
            self._before.append(self._batches.begun)
        elif not interactive():
            # What the first machine has saved is on disk before any of them ends.
            self._peers.exchange("the end of an interrupted fit", None)
            leave(self._archive.last(), self._directory)

    def _save(self, record: Record, *, stopped: bool) -> None:
        with mark(f"checkpoint {record.step}"):
            self._begin_save(record, stopped=stopped)

    def _begin_save(self, record: Record, *, stopped: bool) -> None:
        start = time.perf_counter()
        if self._peers.is_first:
            self._writer.wait()
        state = self._engine.state()
        values = state.snapshot()
        if self._peers.several:
            # A callback of any machine ends the fit of all.
            stopped = any(self._peers.exchange("whether the fit was ended", stopped))
            one_of_all(self._peers, state, f"the checkpoint of step {record.step}")
            values |= replicas_of_all(self._peers, state)
        self._last = record.step
        if not self._peers.is_first:
            return
        taken = record.step - self._begin
        position = {**self._batches.position(taken), **self._more()}
        data = {
            "kind": self._checkpoint.data,
            "epochs": self._epochs,
            "batches": taken,
            "spec": self._batches.spec,
            "passes": self._batches.begun,
            "cardinality": self._batches.cardinality,
            "before": list(self._before),
            "parts": self._parts,
        }

        def described() -> Manifest:
            return self._described(record, values, data, state.random, stopped=stopped)

        self._writer.begin(UnwrittenStep(record.step, described, values, position))
        stalled = time.perf_counter() - start
        self.stalled += stalled
        self.saves.append(Save(record.step, stalled, sum(map(num_bytes, values.values()))))

    def _described(
        self,
        record: Record,
        values: Mapping[str, Any],
        data: dict[str, Any],
        random: frozenset[str],
        *,
        stopped: bool,
    ) -> Manifest:
        return Manifest(
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
            generators=_generators(values, random, self._engine.num_replicas),
            data=data,
            devices=self._engine.num_replicas,
            mode=self._mode,
            versions=_versions(),
            written=datetime.now(UTC).isoformat(timespec="seconds"),
        )


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
