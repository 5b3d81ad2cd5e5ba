"""Folders of runs as they are found: whole, half written, damaged, of another version, or none at all."""

import json
import os
from pathlib import Path

import pytest

from colonnade.describe.run_folder import is_run, read_run, sessions, told_apart
from colonnade.describe.timeline import Event, Timeline
from colonnade.errors import InvalidArgument


def written(folder: Path, lines=(), progress=(), facts=None):
    folder.mkdir(exist_ok=True)
    for name, values in (("metrics.jsonl", lines), ("progress.jsonl", progress)):
        (folder / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    (folder / "run.json").write_text(json.dumps({"format": 1} if facts is None else facts))
    return folder


def test_nobody_waits_for_a_pipe(tmp_path):
    for name in ("run.json", "metrics.jsonl", "progress.jsonl", "timeline.json"):
        os.mkfifo(tmp_path / name)
    run = read_run(tmp_path)
    assert not run.lines
    assert "metrics.jsonl cannot be read (it is no regular file)" in run.flaws
    assert run.timeline is None


def test_a_whole_run(tmp_path):
    lines = [{"step": i, "loss": 1 / i, "accuracy": 0.5, "replicas": {"CPU:0": 1.0}} for i in (10, 20)]
    folder = written(tmp_path / "first", lines, [{"event": "begin", "step": 0}], {"format": 1, "loss": "f"})
    (folder / "timeline.json").write_text(Timeline.of([Event("CPU:0", 0.0, 1.0, "forward")]).to_json())
    run = read_run(folder)
    assert (run.name, run.facts["loss"], run.flaws) == ("first", "f", ())
    assert run.column("loss") == [0.1, 0.05]
    assert run.metrics == ["accuracy"]
    assert run.timeline is not None
    assert run.timeline.span == 1.0
    assert is_run(folder)
    assert not is_run(tmp_path)


def test_numbers_that_are_none(tmp_path):
    lines = [{"step": 1, "loss": None}, {"step": 2, "loss": "x"}, {"step": 3, "loss": 10**400}]
    folder = written(tmp_path / "a", lines)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": NaN}\n{"step": 5, "loss": 2}\n')
    assert read_run(folder).column("loss") == [None, None, None, None, 2.0]


def test_what_is_broken_is_left_out_and_named(tmp_path):
    folder = written(tmp_path / "a", [{"step": 1, "loss": 1.0}], facts=[])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"loss": 3}\n{"step": 2, "lo')
    (folder / "timeline.json").write_text('{"events": [{"device": 1}]}')
    (folder / "predicted.json").write_text("[" * 100_000)
    os.remove(folder / "progress.jsonl")
    run = read_run(folder)
    assert [line["step"] for line in run.lines] == [1]
    said = "\n".join(run.flaws)
    for word in (
        "run.json is damaged",
        "3 broken lines left out (2, 3, 5)",
        "1 lines without a step",
        "progress.jsonl is missing",
        "timeline.json is damaged",
        "predicted.json is damaged",
    ):
        assert word in said


def test_nothing_but_metrics(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    assert set(read_run(tmp_path).flaws) == {
        "run.json is missing: what ran where is not known",
        "metrics.jsonl holds nothing yet",
        "progress.jsonl is missing",
    }


def test_steps_that_were_made_again_count_once(tmp_path):
    again = [{"step": i, "loss": 0.0} for i in (10, 20, 30)] + [{"step": i, "loss": 1.0} for i in (20, 30)]
    run = read_run(written(tmp_path / "a", again))
    assert [(line["step"], line["loss"]) for line in run.lines] == [(10, 0.0), (20, 1.0), (30, 1.0)]
    assert any("2 lines are of steps that were made again" in flaw for flaw in run.flaws)


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path, monkeypatch):
    for name in ("x/a/run", "x/b/run", "y/b/run", "other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        written(tmp_path / name)
    monkeypatch.chdir(tmp_path / "x" / "b" / "run")
    runs = [read_run(path) for path in (tmp_path / "x/a/run", ".", tmp_path / "y/b/run", "../../../other")]
    assert [run.name for run in told_apart(runs)] == ["a/run", "x/b/run", "y/b/run", "other"]
    assert [run.name for run in told_apart([runs[0], runs[0]])] == ["run", "run"]


def test_beginnings_and_ends(tmp_path):
    events = ["begin", "save", "begin", "end", "begin"]
    run = read_run(written(tmp_path / "a", (), [{"event": e, "n": i} for i, e in enumerate(events)]))
    assert [(b["n"], e and e["n"]) for b, e in sessions(run)] == [(0, None), (2, 3), (4, None)]
    assert [line["n"] for line in run.happened("save")] == [1]


def test_no_folder_no_run_no_permission(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    written(tmp_path / "runs" if (tmp_path / "runs").mkdir() else tmp_path / "runs" / "a")
    for name, rule in (
        ("nowhere", "there is no such directory"),
        ("file", "is a file and no directory"),
        ("empty", "holds no run: neither run.json nor metrics.jsonl"),
        ("runs", f"It has runs inside: {tmp_path / 'runs' / 'a'}"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            read_run(tmp_path / name)
        assert rule in str(refused.value)

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", forbidden)
    with pytest.raises(InvalidArgument, match=r"cannot be read \(Permission denied\)"):
        read_run(tmp_path / "empty")


@pytest.mark.parametrize("versions", [{"colonnade": "9.0.0"}, None])
def test_another_format(tmp_path, versions):
    folder = written(tmp_path / "a", facts={"format": 2, "versions": versions})
    version = "9.0.0" if versions else "unknown"
    with pytest.raises(
        InvalidArgument, match=f"Colonnade {version} in format 2, and this one reads format 1"
    ):
        read_run(folder)
