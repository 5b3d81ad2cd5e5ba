"""What a page says of a run in figures and words."""

import json

import pytest
from runs import START, facts, run_folder

from colonnade.describe.run_folder import FIGURES, read_run
from colonnade.show.report import run_summary
from colonnade.show.report.training_time import TrainingTime

NOW = START + 1000


@pytest.fixture
def run(tmp_path):
    return read_run(run_folder(tmp_path / "a"))


def test_the_strip(run):
    found = {tile.name: (tile.value, tile.note) for tile in run_summary.tiles(run)}
    assert found["steps"] == ("100", "")
    assert found["loss"] == ("0.09957", "lowest 0.08962")
    assert found["devices"] == ("2", "Synchronous(shares='even')")
    assert found["time"] == ("1 s", "began 2026-09-21 14:13 UTC")
    assert found["stalled by saves"] == ("0.40%", "1 save")
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


def test_what_files_do_not_say_is_not_made_up(tmp_path):
    """A beginning without a time was in 1970, and a link without an end led to None."""
    ends = [{"from": "CPU:1", "bytes": 8.0}, {"from": "CPU:1", "to": "CPU:0", "bytes": 8.0}, 3]
    folder = run_folder(tmp_path / "a", links=ends)
    (folder / "progress.jsonl").write_text('{"event": "begin", "step": 0}\n')
    run = read_run(folder)
    assert run_summary.history(run) == [("at an unknown time", "began at step 0")]
    assert run_summary.links(run) == {("CPU:1", "CPU:0"): 8.0}


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(59.4, "59.4 s"), (119.7, "2 min 0 s"), (3599.6, "1 h 0 min"), (7199.9, "2 h 0 min")],
)
def test_no_minute_has_sixty_seconds(seconds, said):
    assert run_summary.duration(seconds) == said


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


def test_a_row_for_each_run(tmp_path, run):
    other = read_run(run_folder(tmp_path / "b", how=None))
    columns, (first, second) = run_summary.comparison([run, other], NOW)
    assert dict(zip(columns, first, strict=True)) == {
        "run": "a",
        "state": "finished",
        "steps": "100",
        "last loss": "0.09957",
        "lowest loss": "0.08962",
        "accuracy": "0.9983",
        "examples/s": first[6],
        "time": "1 s",
        "mode": "Synchronous(shares='even')",
    }
    assert second[:2] == ["b", "silent for 16 min 39 s: killed, or between log lines"]


def test_metrics_called_like_columns_replace_none(tmp_path, run):
    names = [name for name in (*run_summary.BEFORE, *run_summary.AFTER) if name not in FIGURES]
    folder = run_folder(tmp_path / "b")
    line = {"step": 3, "loss": 1.0, **dict.fromkeys(names, 0.25)}
    (folder / "metrics.jsonl").write_text(json.dumps(line))
    columns, (first, second) = run_summary.comparison([read_run(folder), run], NOW)
    assert len(set(columns)) == len(columns) == len(first) == len(second) == 2 * len(names) + 2
    told = dict(zip(columns, first, strict=True))
    assert (told["run"], told["steps"], told["mode"]) == ("b", "3", "Synchronous(shares='even')")
    assert [told[f"{name} (metric)"] for name in names] == ["0.25"] * len(names)
    assert told["accuracy"] == ""


def test_a_metric_that_a_run_knows_only_as_nan_has_no_value(tmp_path):
    folder = run_folder(tmp_path / "a")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": null, "m": 2}\n{"step": 2, "m": null}')
    columns, (row,) = run_summary.comparison([read_run(folder)], NOW)
    assert dict(zip(columns, row, strict=True))["m"] == "2"
    assert row[3:5] == ["", ""]


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
    assert TrainingTime.of(run).total == pytest.approx(31.0)


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
    assert said == ["The loss was not finite at step 3, 4, 5, 6, 7 and 2 more; the curve has a gap there."]


def test_metrics_that_are_not_finite(tmp_path):
    folder = run_folder(tmp_path / "a")
    lines = [{"step": 1, "loss": 1.0, "now and then": 1.0, "never": None}]
    lines.append({"step": 2, "loss": 0.5, "now and then": None, "never": None})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_summary.not_finite(read_run(folder)) == [
        "The metric never was not finite at any step, and has no curve.",
        "The metric now and then was not finite at step 2; the curve has a gap there.",
    ]
    assert run_summary.not_finite(read_run(run_folder(tmp_path / "b"))) == []


def test_skipped_updates_of_steps_that_were_made_again_count_once(tmp_path):
    """Killed after step 60 and gone on from 40; the save of 50 was made, and stays."""
    folder = run_folder(tmp_path / "a")
    events = [
        {"event": "begin", "step": 0},
        {"event": "skipped", "step": 40, "updates": 1},
        {"event": "skipped", "step": 41, "updates": 2},
        {"event": "save", "step": 50},
        {"event": "skipped", "step": 60, "updates": 4},
        {"event": "begin", "step": 40, "resumed": 40},
        {"event": "skipped", "step": 41, "updates": 2},
        {"event": "skipped", "step": 60, "updates": 4},
        {"event": "end", "step": 70, "how": "finished"},
        {"event": "begin", "step": 70, "resumed": 70},
        {"event": "end", "step": 70, "how": "finished"},
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    run = read_run(folder)
    assert run_summary.skipped(run) == 7
    assert [line["step"] for line in run_summary.skips(run)] == [40, 41, 60]
    assert [line["step"] for line in run_summary.saves(run)] == [50]


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
    assert len(run_summary.comparison([run, run], NOW)[1]) == 2
    assert isinstance(run_summary.settings(run), dict)
    assert run_summary.state(run, NOW)[0] in ("good", "bad", "unknown", "running")
    assert run_summary.links(run) == {}
