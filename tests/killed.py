"""A training that is killed again and again, and a program that kills it.

Run as a program: `killed.py DIRECTORY ACTION ARGUMENTS...` prints what happened as JSON. TensorFlow is
imported once and not started; every training is a fork of that process: two seconds in place of five.

    test                      some of each of the following
    random KILLS SEED MODE DATA   kill -9 at random moments, many of them inside a save, until KILLS were
                              made; each time the same training goes on; its end must be what was promised
                              for this kind: see trainings.py for the modes and data
    points MODE               a kill before and after every write, fsync, rename and removal of a save
    signals                   SIGTERM and Ctrl-C
    launches COUNT            a second training in the directory of a first
"""

import gc
import hashlib
import io
import json
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import trainings

import colonnade as cn
from colonnade.run.checkpoint import directory, tensor_files, writer

STEPS, EVERY = 60, 5
X = np.random.default_rng(0).normal(size=(103, 4)).astype("float32")
Y = (X.sum(axis=1, keepdims=True) > 0).astype("float32")


def train(folder: Path | None, mode: str, pause: float = 0.0, steps: int = STEPS) -> str:
    """The checksum of everything that a training ends with: parameters, optimizer, averages, generators."""
    cn.setup(virtual=3)
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([4]), layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50).batch(10)
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((model(x, training=True) - y) ** 2, axis=1),
        keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9), use_ema=True),
        variables=mode,
    )
    trainer.fit(
        data,
        steps=steps,
        epochs=STEPS,
        log_every=1,
        callbacks=[lambda record: time.sleep(pause)],
        checkpoint=cn.Checkpoint(folder, every=EVERY) if folder else None,
        progress=False,
    )
    assert trainer.step == steps
    found = hashlib.sha256()
    for name, variable in sorted(trainer._engine.state().variables().items()):
        found.update(name.encode() + np.asarray(variable).tobytes())
    return found.hexdigest()


def fork(folder: Path, body: Callable[[], Any]) -> int:
    """Run something in a process of its own, which writes its result, or its errors, into files."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        errors = os.open(folder / f"{os.getpid()}.err", os.O_WRONLY | os.O_CREAT)
        os.dup2(errors, 2)
        (folder / f"{os.getpid()}.out").write_text(str(body()))
        code = 0
    except SystemExit as left:
        code = left.code
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def unbroken(notes: Path, mode: str) -> str:
    """The end of a training that nothing happens to, and that saves nothing."""
    return of_a_fork(notes, lambda: train(None, mode))


def of_a_fork(notes: Path, body: Callable[[], str]) -> str:
    pid = fork(notes, body)
    assert ended(pid) == 0, (notes / f"{pid}.err").read_text()
    return (notes / f"{pid}.out").read_text()


def points_in_a_save(reached: Callable[[str], None]) -> None:
    """Call `reached` before and after everything that a save does to the disk, and only in a save.

    Between the write of a file and its fsync there is a point too: "after write" and "before fsync".
    """
    saving: list[str] = []

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if saving:
                reached(f"before {name}")
            result = function(*args, **options)
            if saving:
                reached(f"after {name}")
            return result

        return call

    def within(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            saving.append(function.__name__)
            try:
                return function(*args, **options)
            finally:
                saving.pop()

        return call

    class File(io.FileIO):
        write = wrapped("write", io.FileIO.write)

    def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        """Without a buffer, so that a write is one."""
        return File(path, "x") if saving and mode == "xb" else open_path(path, mode, *rest, **options)

    open_path = Path.open
    Path.open = opened
    Path.mkdir = wrapped("mkdir", Path.mkdir)
    writer.write = wrapped("write", tensor_files.write)
    directory._remove = wrapped("remove", directory._remove)
    calls = {name: staticmethod(wrapped(name, getattr(os, name))) for name in ("rename", "fsync")}
    directory.os = type("os", (), {**vars(os), **calls})
    directory.Archive.commit = within(directory.Archive.commit)
    directory.Archive.prune = within(directory.Archive.prune)


class Timed:
    """Kills its own process some time after its first step, whatever it is at then."""

    def __init__(self, delay: float) -> None:
        self.delay, self.timer = delay, None

    def __call__(self) -> None:
        if self.timer is None:
            self.timer = threading.Timer(self.delay, os.kill, (os.getpid(), signal.SIGKILL))
            self.timer.daemon = True
            self.timer.start()
        time.sleep(0.005)  # so that there is time for a kill in a training of some milliseconds


class Killer:
    """Kills its own process at one point inside a save, and tells which it was."""

    def __init__(self, note: Path, after: int) -> None:
        self.note, self.left = note, after

    def __call__(self, point: str) -> None:
        self.left -= 1
        if self.left < 0:
            self.note.write_text(point)
            os.kill(os.getpid(), signal.SIGKILL)


def random_kills(folder: Path, kills: str, seed: str, mode: str, data: str) -> dict[str, Any]:
    chance, kind = random.Random(int(seed)), trainings.Kind(mode, data)
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    wanted = trainings.promised(kind) or of_a_fork(notes, lambda: trainings.train(kind, None))
    total = {"kills": 0, "inside a save": 0, "between steps": 0, "trainings": 0, "as promised": 0}
    points: dict[str, int] = {}
    others: list[str] = []
    while total["kills"] < int(kills) or total["trainings"] == 0:
        run = folder / f"run-{total['trainings']}"
        while True:
            where = chance.choices(("save", "step", "any"), (45, 40, 15))[0]
            if total["kills"] >= int(kills):
                where = "nowhere"
            note, after = notes / f"{total['kills']}.point", chance.randint(0, 90)
            delay, early = chance.uniform(0, 0.3), chance.uniform(0.1, 1.5)

            def body(where=where, note=note, after=after, delay=delay, run=run) -> str:
                if where == "save":
                    points_in_a_save(Killer(note, after))
                timed = Timed(delay) if where == "step" else lambda: None
                return trainings.train(kind, run, timed)

            pid = fork(notes, body)
            if where == "any":  # also while it starts, and while it goes on from what was saved
                time.sleep(early)
                os.kill(pid, signal.SIGKILL)
            code = ended(pid)
            if code == 0:
                break
            assert code == -signal.SIGKILL, f"{kind}: exit code {code}\n{(notes / f'{pid}.err').read_text()}"
            total["kills"] += 1
            total["between steps"] += where == "step"
            if note.exists():
                total["inside a save"] += 1
                points[note.read_text()] = points.get(note.read_text(), 0) + 1
        total["trainings"] += 1
        last = (notes / f"{pid}.out").read_text()
        total["as promised"] += last == wanted
        others += [last] if last != wanted else []
        shutil.rmtree(run)
    return {**total, "points": points, "wanted": wanted, "others": others}


def every_point(folder: Path, mode: str, wanted: str = "") -> dict[str, Any]:
    """A kill at each point of the first saves, one after the other, and the end of the training after it."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    wanted = wanted or unbroken(notes, mode)
    found, after = [], 0
    while True:
        run, note = folder / f"run-{after}", notes / f"{after}.point"

        def killed(note=note, after=after, run=run) -> str:
            points_in_a_save(Killer(note, after))
            return train(run, mode)

        pid = fork(notes, killed)
        code = ended(pid)
        # Behind the fifth save come only more of the same: by then old ones are removed as well.
        if code == 0 or len(found) > 150:
            break
        pid = fork(notes, lambda run=run: train(run, mode))
        assert ended(pid) == 0, (notes / f"{pid}.err").read_text()
        assert (notes / f"{pid}.out").read_text() == wanted, note.read_text()
        found.append(note.read_text())
        after += 1
    return {"points": len(found), "kinds": {kind: found.count(kind) for kind in sorted(set(found))}}


def signals(folder: Path, wanted: str = "") -> dict[str, Any]:
    """What a training does when it is told to end; then it goes on and is compared."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    wanted = wanted or unbroken(notes, "shared")
    told = {}
    for name in ("SIGTERM", "SIGINT"):
        run = folder / name
        pid = fork(notes, lambda run=run: train(run, "shared", pause=0.05))
        while not list(run.glob("step-*")):
            time.sleep(0.02)
        start = time.monotonic()
        os.kill(pid, getattr(signal, name))
        code = ended(pid)
        seconds = time.monotonic() - start
        saved = max(int(path.name.removeprefix("step-")) for path in run.glob("step-*"))
        says = (notes / f"{pid}.err").read_text()
        pid = fork(notes, lambda run=run: train(run, "shared"))
        equal = ended(pid) == 0 and (notes / f"{pid}.out").read_text() == wanted
        told[name] = {"code": code, "seconds": seconds, "saved": saved, "says": says, "equal": equal}
    return told


def launches(folder: Path, count: str) -> dict[str, int]:
    """While a training runs, others are refused its directory; once it is killed, another goes on."""
    notes, run = folder / "notes", folder / "run"
    notes.mkdir(parents=True, exist_ok=True)
    first = fork(notes, lambda: train(run, "shared", pause=1.0))
    while not (run / ".owner").exists():
        time.sleep(0.02)
    refused = 0
    for _ in range(int(count)):
        second = fork(notes, lambda: train(run, "shared"))
        assert ended(second) == 1
        says = (notes / f"{second}.err").read_text()
        assert f"CheckpointInUse: process {first} on {socket.gethostname()} saves into" in says, says
        refused += 1
    os.kill(first, signal.SIGKILL)
    ended(first)
    third = fork(notes, lambda: train(run, "shared"))
    assert ended(third) == 0, (notes / f"{third}.err").read_text()
    return {"refused": refused, "went on": 1}


def some(folder: Path) -> dict[str, Any]:
    notes = folder / "notes"
    notes.mkdir()
    wanted = unbroken(notes, "shared")
    return {
        "random": random_kills(folder / "random", "4", "49", "mirrored", "seeded"),
        "signals": signals(folder, wanted),
        "launches": launches(folder, "1"),
    }


if __name__ == "__main__":
    # What was imported stays: forks need not look for garbage in it, nor often, as in conftest.py.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    folder, action, *arguments = sys.argv[1:]
    actions = {
        "test": some,
        "random": random_kills,
        "points": every_point,
        "signals": signals,
        "launches": launches,
    }
    print(json.dumps(actions[action](Path(folder), *arguments)))
