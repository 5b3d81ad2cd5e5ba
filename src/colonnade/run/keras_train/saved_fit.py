"""`cn.fit(..., checkpoint=)`: a training in Keras's loop that goes on exactly where an earlier run was cut.

Keras counts epochs and batches, calls the callbacks and validates. The batches come from Colonnade, which
knows its place in them, and after a batch or an epoch everything is saved: variables, states of callbacks,
the history. When a run goes on in the middle of an epoch, Keras counts through the batches that an earlier
run has made; neither the step nor any callback hears of them.

Several machines do all of this together: the first one writes, all read. They tell each other twice a second
whether one of them was told to end, and end after the same batch.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.batch.split import Arguments
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.checkpoint.nest_tensors import from_tensors, to_tensors
from colonnade.run.checkpoint.saver import Saver
from colonnade.run.data.batches import END
from colonnade.run.data.coming_batches import ComingBatches
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.history import Record
from colonnade.run.keras_callbacks.callback_states import CallbackStates, go_on_writing
from colonnade.run.keras_callbacks.common_callbacks import CommonCallbacks
from colonnade.run.keras_train.fit_dataset import FitDataset
from colonnade.run.keras_train.step_state import StepState
from colonnade.run.machines.peers import Peers
from colonnade.run.model.exchanged import lent
from colonnade.run.model.training_step import all_metrics
from colonnade.run.train.signals import Interruption, interruptible

LOOP = "loop"  # the name of the loop's own state in a checkpoint
DIRECTORIES = "_colonnade_directories"  # where a model keeps those of its trainings in this program
# A place in the data is not bound to how many epochs there will be, so this stands for any number.
ANY_EPOCHS = 2**31
NUMBERS = (int, float, np.number, tf.Tensor)
# Machines ask each other after so many seconds, or a batch if it takes longer, whether one was told to end.
SECONDS_BETWEEN_TALKS = 0.5


class Interrupted(Exception):
    """The fit was told to end, and everything is saved; never leaves the package."""


class SavedFit:
    """One training.

    Args:
        model: the model.
        step: what Keras is to call with batches.
        checkpoint: where and how often to save.
        how: how it trains, for the manifest.
        callbacks: those of the user, of which the states are saved; in front of them, and behind, others.
        peers: the machines that train together.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Any,
        checkpoint: Checkpoint,
        how: dict[str, str],
        callbacks: CommonCallbacks,
        peers: Peers,
    ) -> None:
        self._given, self._peers = callbacks, peers
        self._model, self._step, self._checkpoint, self._how = model, step, checkpoint, how
        self._epoch = self._batch = 0  # what comes next: which epoch, and which batch of it
        self._made = self._examples = 0  # steps in all, and examples
        self._logs: dict[str, float] = {}
        self._pass = 0  # through the data, of this epoch
        self._talked, self._talks_at = (0, time.monotonic()), 0  # at which step, and when; at which step next

    def run(self, data: FitDataset) -> Any:
        """Train, as `model.fit` does; Keras's `History`."""
        self._first = data.options.pop("initial_epoch", 0)
        self._epoch, self._last = self._first, data.options.pop("epochs", 1)
        self._steps = data.num_steps
        own = self._given.own
        watched = bool(own) or data.options.get("validation_data") is not None
        callbacks = _all(own, data.options.get("verbose", "auto"))
        self._callbacks, self._states = callbacks, CallbackStates(callbacks)
        state = StepState(self._model, self._step, self._peers)
        self._peers.agree("fit()", {"batches of an epoch": data.num_steps})
        vars(self._model).setdefault(DIRECTORIES, set()).add(_place_of(self._checkpoint))
        with (
            interruptible(preemption=True) as self._interrupted,
            Saver(
                self._checkpoint, state, self._how, [], ANY_EPOCHS, more=self._place, peers=self._peers
            ) as self._saver,
        ):
            self._interrupted.known = not self._peers.several
            self._find_place()
            passes = max(self._last - self._first, 1)
            self._batches = self._saver.batches(FitData(data.batches, ("data",), {}, passes, watched))
            self._coming = ComingBatches(self._taken, self._following)
            with lent(self._model, train_function=self._train), closing(self._coming):
                history = self._fitted(data)
            self._hear("the end of fit()")
        self._saver.ended(interrupted=self._interrupted.ends)
        return history

    def _fitted(self, data: FitDataset) -> Any:
        callbacks = [*self._given.front, *self._callbacks, *self._given.behind]
        listed = _Heard(self, callbacks, self._model, data, self._last)
        with suppress(Interrupted):
            self._model.fit(
                data.counted,
                epochs=self._last,
                initial_epoch=self._last if self._saver.over else self._epoch,
                steps_per_epoch=data.steps_per_epoch,
                callbacks=listed,
                shuffle=False,
                **data.options,
            )
        return self._model.history

    def _find_place(self) -> None:
        """Where an earlier run was cut."""
        saved = self._saver.found
        self._saved = from_tensors(LOOP, saved) if LOOP in saved else None
        if saved and self._saved is None:
            rule = "holds the checkpoints of a cn.Trainer, which has no epochs of Keras"
            fix = "Name another directory"
            check("Checkpoint()", [Problem("directory", str(self._checkpoint.directory), rule, fix)])
        if self._saved is not None:
            self._epoch, self._batch = self._saved["epoch"], self._saved["batch"]
            go_on_writing(self._callbacks)

    def begin(self) -> None:
        """After the callbacks have begun: everything becomes as it was saved."""
        self._states.note_begin()
        manifest = self._saver.start(0)
        if manifest is not None and self._saved is not None:
            self._made, self._examples = manifest.step, manifest.examples
            self._put_back_states(manifest.step)
            metrics = [v for metric in all_metrics(self._model) for v in metric.variables]
            self._metrics = [(variable, variable.numpy()) for variable in metrics]
        # Since then more epochs may be wanted.
        self._batches.next_pass()
        self._talked = self._made, time.monotonic()

    def begin_epoch(self) -> None:
        """After the callbacks have begun an epoch, and Keras has begun its metrics anew."""
        self._pass = self._batches.begun
        if self._saved is not None and self._batch:
            for variable, value in self._metrics:
                variable.assign(value)
            self._put_back_states(self._made)
        self._done, self._saved = self._batch, None

    def _put_back_states(self, step: int) -> None:
        """Of callbacks: those of the first machine, where all must be; others need not have all of them."""
        assert self._saved is not None
        self._states.set(self._saved["callbacks"], step, partly=not self._peers.is_first)

    def was_made(self, batch: int) -> bool:
        """Whether an earlier run has made this batch of the epoch."""
        return batch < self._done

    def _train(self, _: Any) -> Any:
        """One call of Keras: a step or several; none where an earlier run has made them."""
        if self.passing:
            return {}
        return self._step(self._coming)

    passing = False

    def _taken(self) -> Any:
        if self._is_over:
            raise StopIteration
        data = _data(self._batches.next())
        self._made += 1
        self._examples += _rows(data)
        return data

    def _following(self) -> Any:
        """The batch that comes next in this epoch; it is at hand, and stays so in what is saved."""
        return None if self._is_over else _data(self._batches.at_hand())

    @property
    def _is_over(self) -> bool:
        """Whether the data of this epoch are at their end; not if they failed, which is to be told."""
        ended = self._batches.size == END and not self._batches.failed
        return ended or self._batches.begun != self._pass

    def after_batch(self, batch: int, logs: Any) -> None:
        """After all callbacks have heard of it."""
        self._batch, self._logs = batch + 1, _numbers(logs)
        if self._model.stop_training or self._is_over or self._batch == self._steps:
            return  # the end of the epoch is heard of next
        self._saver.after(self._record, resting=True, stopped=False)
        if not self._peers.several or self._made >= self._talks_at:
            self._end_if_told()

    def after_epoch(self, epoch: int) -> None:
        self._epoch, self._batch = epoch + 1, 0
        stopped = bool(self._model.stop_training)
        self._saver.after(self._record, resting=True, stopped=stopped)
        # Keras goes on to change weights at the end: a run that has nothing left to do makes that again.
        if stopped or self._epoch == self._last:
            self._saver.finish(stopped=stopped)
        else:
            self._end_if_told()

    def _end_if_told(self) -> None:
        waited = self._hear("whether one was told to end")
        if waited is not None and self._saver.can_end(self._made, waited):
            self._saver.finish(stopped=False)
            raise Interrupted

    def _hear(self, topic: str) -> float | None:
        """Seconds since a signal that told this machine to end, or any other; None if there was none.

        Nothing counts but what was exchanged, so that all machines decide alike.
        """
        interruption: Interruption = self._interrupted
        if not self._peers.several:
            return interruption.seconds if interruption.is_set() else None
        step, when = self._talked
        self._talked = self._made, time.monotonic()
        made = max(self._made - step, 1)
        per_step = max((self._talked[1] - when) / made, 1e-6)
        wanted = max(min(int(SECONDS_BETWEEN_TALKS / per_step), 2 * made), 1)  # it may become slower
        every = self._peers.exchange(topic, [interruption.told(), wanted])
        self._talks_at = self._made + min(steps for _, steps in every)
        return interruption.hear([signal for signal, _ in every])

    @property
    def _record(self) -> Record:
        loss = self._logs.get("loss", float("nan"))
        return Record(loss, self._logs, self._made, self._examples)

    def _place(self) -> dict[str, Any]:
        """What is saved of the loop itself."""
        loop = {"epoch": self._epoch, "batch": self._batch, "callbacks": self._states.get()}
        return to_tensors(LOOP, loop)


class _Heard(keras.callbacks.CallbackList):
    """The callbacks of a fit, which hear of everything but what an earlier run has made."""

    def __init__(
        self, fit: SavedFit, callbacks: Sequence[Any], model: keras.Model, data: FitDataset, epochs: int
    ) -> None:
        self._fit = fit
        verbose = data.options.get("verbose", "auto")
        super().__init__(list(callbacks), model=model, verbose=verbose, epochs=epochs, steps=data.num_steps)

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self._fit.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._fit.begin_epoch()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._fit.passing = self._fit.was_made(batch)
        if not self._fit.passing:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._fit.passing:
            super().on_train_batch_end(batch, logs)
            self._fit.after_batch(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        self._fit.after_epoch(epoch)


def _all(callbacks: Any, verbose: Any) -> list[Any]:
    """Those of the user, and those that Keras adds."""
    given = [] if callbacks is None else [*callbacks] if isinstance(callbacks, list | tuple) else [callbacks]
    if not any(isinstance(callback, keras.callbacks.History) for callback in given):
        given.append(keras.callbacks.History())
    if verbose != 0 and not any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in given):
        given.append(keras.callbacks.ProgbarLogger())
    return given


def checkpoint_problems(checkpoint: Any, model: Any, arguments: dict[str, Any]) -> Iterator[Problem]:
    """What does not go with a checkpoint."""
    if not isinstance(checkpoint, Checkpoint):
        rule, fix = "must be a cn.Checkpoint", "Try cn.Checkpoint('runs/first', every=1000)"
        yield Problem("checkpoint", checkpoint, rule, fix)
        return
    if checkpoint.data == "restart":
        rule = "begins with the first batch, where Keras goes on in the middle of an epoch"
        yield Problem("data", checkpoint.data, rule, 'Leave it out, or choose "skip"')
    if _place_of(checkpoint) in vars(model).get(DIRECTORIES, ()):
        rule = "is that of an earlier cn.fit of this model in this program, and would be taken for its end"
        yield Problem("directory", str(checkpoint.directory), rule, "Name another directory")
    callbacks = _all(arguments.get("callbacks"), 0)
    if any(isinstance(callback, keras.callbacks.BackupAndRestore) for callback in callbacks):
        rule = "saves and goes on too, by epochs"
        yield Problem("callbacks", "BackupAndRestore", rule, "Leave it out")
    if any(isinstance(callback, keras.callbacks.CallbackList) for callback in callbacks):
        yield Problem(
            "callbacks", "a CallbackList", "must be a list where a checkpoint is kept", "Pass a list"
        )


def _place_of(checkpoint: Checkpoint) -> Path:
    return Path(checkpoint.directory).expanduser().resolve()


def _numbers(logs: Any) -> dict[str, float]:
    """Of what a step tells; a model's own step may tell anything."""
    flat = {name: value for name, value in (logs or {}).items() if isinstance(value, NUMBERS)}
    return {name: float(value) for name, value in flat.items() if not getattr(value, "shape", ())}


def _data(batch: Arguments | None) -> Any:
    """A batch as Keras has it."""
    assert batch is not None
    (data,), _ = batch.unpack(batch.components())
    return data


def _rows(data: Any) -> int:
    arguments = Arguments((data,), {}, ("data",))
    return max((leaf.size() or 0 for leaf in arguments.split), default=0)
