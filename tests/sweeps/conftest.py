"""Sweeps of the objectives in `objectives.py`, each with a folder and leases of its own."""

import sys

import optuna
import pytest
from fresh import ROOT

from colonnade.sweeps.settings import SweepSettings
from colonnade.sweeps.study import conduct


class Seen:
    """Writes down what a watcher is told."""

    def __init__(self):
        self.lines, self.boards = [], []

    def begun(self, trial):
        self.lines.append(("begun", trial.number))

    def ended(self, trial, ending):
        self.lines.append((ending.kind, trial.number))

    def noted(self, text):
        self.lines.append(("noted", text))

    def tick(self, board):
        self.boards.append((len(board.running), board.slots))


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Run a sweep in this process; `sweep.seen` is what was told of it."""
    monkeypatch.chdir(ROOT / "tests")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}")
    monkeypatch.setenv("WITNESS", str(tmp_path))

    def run(objective=None, **options):
        run.seen.lines.clear()
        run.seen.boards.clear()
        options.setdefault("virtual", 2)
        places = {"folder": tmp_path / "studies", "leases": tmp_path / "leases"}
        what = None if objective is None else f"objectives:{objective}"
        return conduct(SweepSettings(objective=what, **places, **options), run.seen)

    run.folder = tmp_path / "studies"
    run.seen = Seen()
    run.python = sys.executable
    return run


@pytest.fixture
def states():
    """The states of all trials of a study, in short."""

    def of(study):
        return [trial.state.name for trial in study.get_trials(deepcopy=False)]

    return of


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
