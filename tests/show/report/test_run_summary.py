"""What a page says of a run in figures and words."""

import json

import pytest
from runs import START, facts, run_folder

from colonnade.describe.run_folder import read_run
from colonnade.show.report import run_summary

NOW = START + 1000


@pytest.fixture
def run(tmp_path):
    return read_run(run_folder(tmp_path / "a"))


def test_the_strip(run):
    found = {tile.name: (tile.value, tile.note) for tile in run_summary.tiles(run)}
    assert found["steps"] == ("100", "")
    assert found["loss"] == ("0.09957", "lowest 0.09957")
    assert found["devices"] == ("2", "Synchronous(shares='even')")
    assert found["time"] == ("1 s", "began 2026-09-21 14:13 UTC")
    assert found["stalled by saves"] == ("0.40%", "1 saves")
    assert found["waiting"][0].endswith("%")


def test_what_ran_in_a_line(run):
    assert run_summary.sentence(run) == (
        "tower (Sequential) · Adam · 2 devices · Synchronous(shares='even') · variables shared · batch 128"
    )


@pytest.mark.parametrize(
    ("how", "later", "expected"),
    [
        ("finished", 0, ("good", "finished")),
        ("interrupted", 0, ("unknown", "interrupted")),
        ("NotFinite: at step 3", 0, ("bad", "NotFinite: at step 3")),
        (None, 2, ("running", "running")),
        (None, 4000, ("bad", "silent for 1 h 6 min: killed, or between log lines")),
    ],
)
def test_how_it_is(tmp_path, how, later, expected):
    run = read_run(run_folder(tmp_path / "a", how=how))
    assert run_summary.state(run, START + later) == expected


def test_settings_are_plain(run):
    told = run_summary.settings(run)
    assert told["Optimizer"] == {"kind": "Adam", "learning_rate": "0.001", "amsgrad": "no"}
    assert told["Model"]["parameters"] == "786,432"
    assert told["Model"]["size"] == "3.0 MiB"


def test_only_differences_are_told(tmp_path, run):
    other = read_run(run_folder(tmp_path / "b", devices=["CPU:0"], optimizer={"name": "SGD"}))
    assert run_summary.differences([run, other]) == [
        ("Optimizer: kind", ["Adam", "SGD"]),
        ("Optimizer: learning_rate", ["0.001", ""]),
        ("Optimizer: amsgrad", ["no", ""]),
        ("Machine: devices", ["CPU:0, CPU:1", "CPU:0"]),
    ]
    assert run_summary.differences([run, run]) == []
    first, second = run_summary.comparison([run, other], NOW)
    assert first == {
        "run": "a",
        "state": "finished",
        "steps": "100",
        "last loss": "0.09957",
        "lowest loss": "0.09957",
        "accuracy": "0.9983",
        "examples/s": first["examples/s"],
        "time": "1 s",
        "mode": "Synchronous(shares='even')",
    }
    assert second["run"] == "b"


def test_the_course_of_a_run_that_was_killed_once(tmp_path):
    folder = run_folder(tmp_path / "a")
    events = [
        {"time": START, "event": "begin", "step": 0},
        {"time": START + 60, "event": "begin", "step": 40, "resumed": 40},
        {"time": START + 90, "event": "end", "step": 100, "how": "finished"},
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(folder)
    assert [words for _, words in run_summary.history(run)] == [
        "began at step 0",
        "was killed some time before",
        "went on from step 40",
        "finished at step 100",
    ]
    assert run_summary.restarts(run) == 1
    # One second of lines before the kill, then half a minute; what lay between does not count.
    assert run_summary.trained(run) == pytest.approx(31.0)


def test_counts(run):
    assert run_summary.skipped(run) == 3
    assert run_summary.process_memory(run) == 700 * 2**20
    assert run_summary.links(run) == {("CPU:1", "CPU:0"): 3145728.0, ("CPU:0", "CPU:1"): 1048576.0}
    assert [save["step"] for save in run_summary.saves(run)] == [50]


def test_losses_that_are_not_finite(tmp_path):
    folder = run_folder(tmp_path / "a")
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, "loss": None if i > 2 else 1.0}) + "\n" for i in range(1, 10))
    )
    said = run_summary.not_finite(read_run(folder))
    assert said == "The loss was not finite at step 3, 4, 5, 6, 7 and 2 more; the curve has a gap there."


@pytest.mark.parametrize("broken", [None, 7, "x", [1], {}, 1e300])
def test_files_may_hold_anything(tmp_path, broken):
    folder = run_folder(tmp_path / "a", **dict.fromkeys((key for key in facts() if key != "format"), broken))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": broken, "loss": broken}))
    events = [{"event": e, "step": broken, "time": broken, "how": broken} for e in ("begin", "save", "end")]
    (folder / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(folder)
    assert run_summary.tiles(run)[0].name == "steps"
    assert isinstance(run_summary.sentence(run), str)
    assert len(run_summary.history(run)) == 2
    assert len(run_summary.comparison([run, run], NOW)) == 2
    assert isinstance(run_summary.settings(run), dict)
    assert run_summary.state(run, NOW)[0] in ("good", "bad", "unknown", "running")
    assert run_summary.links(run) == {}
