"""Callbacks of a Keras training on several machines: all hear the same, end together, and one writes a file.

Each machine evaluates by itself, so what it finds differs from what others find by rounding: an
`EarlyStopping` could end the training of one of them, a `ReduceLROnPlateau` slow down one alone. So callbacks
hear the numbers of the first machine everywhere. What they decide all the same by themselves, because of a
clock for example, holds for all machines if it ends the training; whatever else it changes is told.

    the first machine's numbers | callbacks of the user | does one of the machines end?
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from colonnade.errors import Problem
from colonnade.run.keras_callbacks.onlookers import hears_of_batches, listed
from colonnade.run.machines.peers import Peers
from colonnade.run.sync.same_training import SPOILT, compared, same_end
from colonnade.run.variables.saved_state import named

# Callbacks that write, by what says where.
WRITERS = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}
# They hear of batches, and change nothing but what they write or show.
LISTENERS = (*WRITERS, keras.callbacks.History, keras.callbacks.ProgbarLogger)


class CommonCallbacks(NamedTuple):
    """The callbacks of this machine."""

    front: Sequence[Any]  # before all others
    own: Sequence[Any]  # the user's, without those of which another machine has the same
    behind: Sequence[Any]  # after all others


def common(peers: Peers, callbacks: Any) -> CommonCallbacks:
    """What is heard where these are given on this machine; all machines must call it."""
    given = listed(callbacks)
    if not peers.several:
        return CommonCallbacks((), given, ())
    said = [any(map(_decides_at_batches, given)), [file for file in map(_file, given) if file is not None]]
    every = peers.exchange("the callbacks of fit()", said)
    written = {file for _, files in every[: peers.rank] for file in files}
    own = [callback for callback in given if _file(callback) not in written]
    if any(at_batches for at_batches, _ in every):
        return CommonCallbacks([_LogsOfBatches(peers)], own, [_EndAtBatches(peers)])
    return CommonCallbacks([_Logs(peers)], own, [_End(peers)])


def uncommon(callbacks: Any) -> Iterator[Problem]:
    """What does not work where several machines train together."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        rule, fix = "must be a list where several machines train together", "Pass a list"
        yield Problem("callbacks", "a CallbackList", rule, fix)
        return
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in listed(callbacks)):
        rule = "is for one machine: each of several would write, and go on from, what it has itself"
        yield Problem("callbacks", "BackupAndRestore", rule, "Use checkpoint=cn.Checkpoint(...)")


class _Logs(keras.callbacks.Callback):
    """In front of all others: what they hear becomes what the first machine found."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self._peers = peers
        self._ended = False  # whether all machines know that the data of the epoch have ended
        self._last: dict[str, Any] = {}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._ended = False

    def on_test_begin(self, logs: Any = None) -> None:
        self._end_of_data()

    def on_test_end(self, logs: Any = None) -> None:
        self._take("the end of a validation of fit()", logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end_of_data()
        self._last = self._take(f"the end of epoch {epoch + 1} of fit()", logs)

    def on_train_end(self, logs: Any = None) -> None:
        if logs:
            logs.update(self._last)

    def _end_of_data(self) -> None:
        if not self._ended:
            same_end(self._peers, "fit()")
            self._peers.rest()
        self._ended = True

    def _take(self, topic: str, logs: Any) -> dict[str, Any]:
        own = {name: np.asarray(value).tolist() for name, value in logs.items()}
        first = self._peers.exchange(topic, own if self._peers.is_first else None)[0]
        logs.clear()
        logs.update(
            {name: np.asarray(value) if isinstance(value, list) else value for name, value in first.items()}
        )
        return dict(logs)


class _LogsOfBatches(_Logs):
    """The same where a callback may decide something after a batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._take("the numbers of a batch of fit()", logs)


class _End(keras.callbacks.Callback):
    """Behind all others: who ends the training ends it for all; what else they change must be the same."""

    def __init__(self, peers: Peers) -> None:
        super().__init__()
        self._peers = peers

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._agree()
        settings = [v for v in self.model.optimizer.variables if not len(v.shape)]  # such as its rate
        variables = [*self.model.trainable_variables, *settings]
        values = {name: v.read_value() for name, v in named([v.value for v in variables]).items()}
        compared(self._peers, values, f"the end of epoch {epoch + 1} of fit()", SPOILT)

    def _agree(self) -> None:
        ends = self._peers.exchange("whether fit() ends", bool(self.model.stop_training))
        self.model.stop_training = any(ends)


class _EndAtBatches(_End):
    """The same after every batch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._agree()


def _decides_at_batches(callback: Any) -> bool:
    return hears_of_batches(callback) and type(callback) not in LISTENERS


def _file(callback: Any) -> str | None:
    """What a callback writes, if it is one of Keras's that do."""
    for kind, attribute in WRITERS.items():
        if isinstance(callback, kind):
            return f"{kind.__name__} {Path(getattr(callback, attribute)).expanduser().absolute()}"
    return None
