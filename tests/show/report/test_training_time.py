"""Seconds of training, as sessions add up."""

import json

import pytest
from runs import START, run_folder

from colonnade.describe.run_folder import read_run
from colonnade.show.report.training_time import TrainingTime


def told(folder, progress, times):
    lines = [{"step": i, "time": START + time, "loss": 1.0} for i, time in enumerate(times, start=1)]
    events = [{"event": event, "time": None if time is None else START + time} for event, time in progress]
    for name, values in (("metrics", lines), ("progress", events)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    return TrainingTime.of(read_run(folder))


@pytest.fixture
def folder(tmp_path):
    return run_folder(tmp_path / "a", steps=1)


def test_the_time_between_sessions_does_not_count(folder):
    """Killed at 30 s after a last line at 20, and begun again an hour later."""
    time = told(folder, [("begin", 0), ("begin", 3600), ("end", 3650)], [10, 20, 3610, 3640])
    assert time.total == 70.0
    assert [time.at(START + at) for at in (-5, 0, 10, 20, 30, 3599, 3600, 3610, 3640, 3650, 9999)] == [
        *(0.0, 0.0, 10.0, 20.0, 20.0, 20.0),
        *(20.0, 30.0, 60.0, 70.0, 70.0),
    ]


def test_other_lines_than_metrics_count_too(folder):
    assert told(folder, [("begin", 0), ("memory", 50)], [10]).total == 50.0


def test_without_beginnings_it_is_from_the_first_line_on(folder):
    time = told(folder, [], [10, 20, 40])
    assert (time.total, time.at(START + 20)) == (30.0, 10.0)
    time = told(folder, [("begin", 100), ("end", 110)], [10, 20, 105])  # the first beginning is lost
    assert (time.total, time.at(START + 20), time.at(START + 105)) == (20.0, 10.0, 15.0)
    assert told(folder, [], []).total == 0.0
    assert told(folder, [], []).at(START) == 0.0


@pytest.mark.parametrize("begun", [("begin", None), ("begin", 200)])
def test_clocks_that_are_put_back_or_missing_take_no_time_away(folder, begun):
    time = told(folder, [("begin", 0), ("end", 300), begun, ("begin", 400), ("end", 350)], [10, 405])
    steps = [time.at(START + at) for at in range(0, 500, 5)]
    assert steps == sorted(steps)
    assert 0 < steps[-1] == time.total <= 400
