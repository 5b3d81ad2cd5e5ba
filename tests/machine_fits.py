"""Trainings by `cn.fit` that are run on several machines and on one, to be held against each other."""

import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path

import keras
import numpy as np
from doubles import in_double

import colonnade as cn


def folder():
    """That all machines of a run share, and no other run."""
    return Path(tempfile.gettempdir()) / f"fits-{os.environ['SPOILT']}"


def is_last():
    return cn.machines().rank == cn.machines().size - 1


def steps_in(saved):
    return sorted(path.name for path in saved.iterdir() if path.name.startswith("step-"))


class Tally(keras.callbacks.Callback):
    """Counts up what it hears, in plain attributes; after so many batches it tells one machine to end."""

    def __init__(self, told_at=None):
        super().__init__()
        self.heard, self.total, self._told_at = [], 0.0, told_at

    def on_train_batch_end(self, batch, logs=None):
        self.heard.append(batch)
        self.total += logs["loss"]
        if len(self.heard) == self._told_at and is_last():
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        self.total += logs["val_mae"]


def saved_fit(devices, saved, told_at=None, *, norm=True):
    """With all that there is to remember: what it ends with."""
    with in_double(anew=True):
        keras.utils.set_random_seed(21)
        layers = [keras.layers.Dense(6), *([keras.layers.BatchNormalization()] if norm else [])]
        model = keras.Sequential(
            [keras.Input((5,)), *layers, keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
        model.compile(optimizer, "mse", metrics=["mae"], steps_per_execution=2 if norm else 1)
        x = np.random.default_rng(3).normal(size=(43, 5))
        y = np.sin(x.sum(axis=1, keepdims=True))
        tally = Tally(told_at)
        slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.2)
        stopping = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
        written = saved.with_name(f"{saved.name}.csv"), saved.with_name(f"{saved.name}.weights.h5")
        saved.parent.mkdir(exist_ok=True)
        writers = [
            keras.callbacks.CSVLogger(written[0]),
            keras.callbacks.ModelCheckpoint(written[1], save_best_only=True, save_weights_only=True),
        ]
        history = cn.fit(
            model,
            x,
            y,
            devices=devices,
            batch_size=10,
            epochs=3,
            validation_data=(x[:20], y[:20]),
            callbacks=[slower, stopping, tally, *writers],
            verbose=0,
            prove=False,
            checkpoint=cn.Checkpoint(saved, every=3),
        )
    return {
        "history": history.history,
        "weights": [w.tolist() for w in model.get_weights()],
        "slots": [v.numpy().tolist() for v in optimizer.variables],
        "states": [tally.heard, tally.total, slower.best, stopping.best, stopping.wait],
        "rows": len(written[0].read_text().split()),
    }


def keras_saved(devices):
    """A training ends because the last machine is told to, and goes on."""
    try:
        saved_fit(devices, folder() / "cut", told_at=7, norm=False)
    except SystemExit as end:
        code = end.code
    steps = steps_in(folder() / "cut")
    return {"code": code, "steps": steps, "end": saved_fit(devices, folder() / "cut", norm=False)}


def keras_saved_whole(devices):
    """The same with statistics of batches, two at a time, and one that nothing happens to; a copy is kept."""
    whole = saved_fit(devices, folder() / "whole")
    with suppress(SystemExit):
        saved_fit(devices, folder() / "other", told_at=4)
    if cn.machines().is_first:
        shutil.copytree(folder() / "other", folder() / "copy")
        shutil.copy(folder() / "other.csv", folder() / "copy.csv")
    end = saved_fit(devices, folder() / "other")
    return {"whole": whole, "end": end, "copy": str(folder() / "copy")}


class AtBatch(keras.callbacks.Callback):
    """Does something to the model of the last machine after so many batches."""

    def __init__(self, batches, do):
        super().__init__()
        self.left, self.do = batches, do

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0 and is_last():
            self.do(self.model)


def keras_parted(devices):
    """What would drive machines apart: other numbers of validation, one that ends, one that is slower."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    x = np.random.default_rng(3).normal(size=(24, 5)).astype("float32")
    y = x[:, :1]

    def fit(*callbacks, found=y, **options):
        given = {"epochs": 4, "batch_size": 8, "verbose": 0, "prove": False, **options}
        return cn.fit(
            model, x, y, devices=devices, validation_data=(x, found), callbacks=list(callbacks), **given
        )

    def end(made):
        made.stop_training = True

    def slow_down(made):
        made.optimizer.learning_rate = 0.01

    path = folder().with_suffix(".log")
    early = keras.callbacks.EarlyStopping(patience=1, min_delta=10.0)
    slower = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0, min_lr=1e-9)
    # To the last machine it gets better by far in every epoch.
    found = y + 1e4 * is_last()
    parted = fit(early, slower, keras.callbacks.CSVLogger(path), found=found).history
    lines = len(path.read_text().split())
    before = int(model.optimizer.iterations)
    ended = fit(AtBatch(2, end)).epoch
    made = int(model.optimizer.iterations) - before
    backup = keras.callbacks.BackupAndRestore(folder())
    return {
        "parted": parted,
        "rate": float(model.optimizer.learning_rate),
        "lines": lines,
        "ended": [ended, made],
        "slower": refusal(lambda: fit(AtBatch(2, slow_down))),
        "backup": refusal(lambda: fit(backup)),
        "validation": refusal(lambda: fit(validation_freq=1 + is_last())),
        "weights": [w.tolist() for w in model.get_weights()] if not is_last() else None,
    }


def refusal(do):
    """The words of an error."""
    try:
        do()
    except cn.InvalidArgument as error:
        return str(error)
    raise AssertionError("nothing was refused")
