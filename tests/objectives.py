"""Objectives and programs that sweeps of the tests run."""

import fcntl
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path


def empty(trial):
    return trial.suggest_float("x", -1, 1) ** 2


def slow(trial):
    time.sleep(0.4)
    return trial.suggest_float("x", -1, 1) ** 2


def reported(trial):
    """Reports as it goes, and can be pruned."""
    import optuna

    x = trial.suggest_float("x", -1, 1)
    for step in range(5):
        trial.report(x * x + 1 / (step + 1), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x * x


@contextmanager
def witnessed():
    """Writes down when a trial used which card; two at once on one card make it fail, and say so.

    A lock for each card, which the kernel drops with the process, knows nothing of leases.
    """
    folder = Path(os.environ["WITNESS"])
    card = os.environ["COLONNADE_CARDS"]
    with (folder / f"{card.replace(':', '-')}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (folder / f"twice-{os.getpid()}").write_text(card)
            raise
        yield folder


def hunted(trial):
    """What the killers of `swept.py` hunt: it takes a while, leaves children behind and notes what it did."""
    x = trial.suggest_float("x", -1, 1)
    with witnessed() as folder:
        note(folder, trial.number, "begun")
        if os.fork() == 0:  # a child that would stay for ever
            time.sleep(600)
            os._exit(0)
        until = time.monotonic() + float(os.environ.get("SECONDS", "0.4"))
        step = 0
        while time.monotonic() < until:
            trial.report(x * x, step)
            step += 1
            time.sleep(0.05)
        note(folder, trial.number, "ended")
    return x * x


def note(folder, number, what):
    with (folder / "notes.jsonl").open("a") as file:
        file.write(json.dumps([number, what, os.getpid(), time.time()]) + "\n")


def rude(trial):
    """Prints binary, forks a child that comes back from it too, and changes directory."""
    x = trial.suggest_float("x", -1, 1)
    sys.stdout.buffer.write(bytes(range(256)) * 4)
    sys.stdout.buffer.flush()
    os.fork()
    os.chdir("/")
    return x * x


def raising(trial):
    if trial.suggest_int("n", 0, 10**6) >= 0 and trial.number == 1:
        raise ZeroDivisionError("as it happens")
    return 1.0


def hanging(trial):
    """Hangs the first time."""
    first = Path(os.environ["COLONNADE_CHECKPOINT"]) / "first"
    if not first.exists():
        first.touch()
        time.sleep(600)
    return 1.0


def dying(trial):
    """Is killed at first, having saved; goes on from there."""
    saved = Path(os.environ["COLONNADE_CHECKPOINT"]) / "saved"
    if not saved.exists():
        saved.write_text("41")
        os.kill(os.getpid(), 9)
    return float(saved.read_text()) + 1


def saving(trial):
    """Ends politely: SIGTERM makes it save and ask to be started again."""
    import signal

    saved = Path(os.environ["COLONNADE_CHECKPOINT"]) / "saved"
    if saved.exists():
        return float(saved.read_text())

    def save(*_):
        saved.write_text("7")
        sys.exit(75)

    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    (Path(os.environ["COLONNADE_TRIAL"]) / "ready").touch()
    time.sleep(600)
    return 0.0
