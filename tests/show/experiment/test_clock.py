"""Time on the wall: what is told of it, and why there may be none."""

import json

from colonnade.show.experiment import clock
from colonnade.show.experiment.clock import Time, clocked


def test_a_row_has_rates_and_ratios_of_the_same_round():
    even = {"synchronous": [100.0, 200.0, 400.0], "asynchronous": [150.0, 240.0, 400.0]}
    slow = {"synchronous": [10.0, 10.0, 10.0], "asynchronous": [30.0, 20.0, 25.0]}
    assert Time(2, 2, {"even": even, "one slow": slow}).rows() == [
        ("synchronous", ["200", "10"]),
        ("asynchronous", ["240 (1.20 times; 1.00 to 1.50)", "25 (2.50 times; 2.00 to 3.00)"]),
    ]


def test_on_one_core_nothing_is_measured_and_what_was_measured_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(clock.os, "sched_getaffinity", lambda _: {0})
    assert "one core" in clocked(tmp_path, quick=True).why_not
    (tmp_path / clock.FILE).write_text(json.dumps({"cores": 4, "devices": 4, "rates": {}}))
    assert clocked(tmp_path, quick=True) == Time(4, 4, {})


def test_without_tensorflow_or_with_an_error_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(clock.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(clock, "find_spec", lambda _: None)
    assert clocked(tmp_path, quick=True).why_not == "TensorFlow is not installed"
