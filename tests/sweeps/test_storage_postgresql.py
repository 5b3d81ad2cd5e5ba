"""Two machines, which share a PostgreSQL server and nothing else: two folders, two directories of leases."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from families import long
from fresh import ROOT
from postgres import Server, find

from colonnade.sweeps.storage import open_storage

PROGRAMS = find()
pytestmark = [
    pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed: apt-get install postgresql"),
    pytest.mark.skipif(importlib.util.find_spec("psycopg") is None, reason="there is no driver: psycopg"),
]


@pytest.fixture(scope="module")
def server():
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to the server's user
        started = Server(PROGRAMS, Path(folder) / "server")
        yield started
        started.stop()


def machine(folder, url, study, trials, **environment):
    """A sweep in a process of its own, as on a machine of its own."""
    folder.mkdir(exist_ok=True)
    options = {
        "trials": trials,
        "virtual": 2,
        "study": study,
        "storage": url,
        "folder": str(folder / "studies"),
        "leases": str(folder / "leases"),
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "swept.py"), json.dumps(options)],
        cwd=ROOT / "tests",
        env={**os.environ, "WITNESS": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends(url, study, tmp_path):
    storage = open_storage(url, tmp_path)
    try:
        return optuna.load_study(study_name=study, storage=storage).trials
    finally:
        storage.engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize(("count", "gone"), [(8, 1), *long((24, 30))])
def test_two_machines_share_a_study_and_the_server_is_away_for_a_while(server, tmp_path, count, gone):
    study = f"both-{count}"
    both = [machine(tmp_path / name, server.url, study, count, SECONDS="0.3") for name in ("one", "two")]

    def away():
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            notes = [tmp_path / name / "notes.jsonl" for name in ("one", "two")]
            if all(note.exists() for note in notes):
                break
            time.sleep(0.05)
        server.stop()
        time.sleep(gone)
        server.start()

    thread = threading.Thread(target=away)
    thread.start()
    said = [one.communicate(timeout=120)[0] for one in both]
    thread.join()
    assert [one.returncode for one in both] == [0, 0], said
    assert any("does not answer" in text and "answers again" in text for text in said), said
    trials = ends(server.url, study, tmp_path)
    # Each may have begun one more when they looked at the same moment.
    assert count <= len(trials) <= count + 2
    assert {trial.state.name for trial in trials} == {"COMPLETE"}
    begun = Counter()
    for name in ("one", "two"):
        lines = [json.loads(line) for line in (tmp_path / name / "notes.jsonl").read_text().splitlines()]
        mine = Counter(number for number, what, *_ in lines if what == "begun")
        assert len(mine) >= 1, "both have worked"
        begun += mine
    assert set(begun) == {trial.number for trial in trials}
    assert begun.total() == len(trials), "none was run twice"
