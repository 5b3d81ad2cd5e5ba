"""The statistics under the benchmarks, with contenders that print what they are told."""

import importlib.util

import pytest
from fresh import ROOT

spec = importlib.util.spec_from_file_location("contest", ROOT / "benchmarks" / "contest.py")
contest = importlib.util.module_from_spec(spec)
spec.loader.exec_module(contest)

PROGRAM = 'import json, sys\nprint("a note")\nprint(json.dumps({"step": float(sys.argv[1])}))'


def test_contenders_take_turns_and_ratios_are_taken_round_by_round(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    a, b = (contest.Contender(name, program, (value,)) for name, value in (("a", "3"), ("b", "2")))
    told, held = [], contest.Contest()
    held.hold([a, b], 2, told.append)
    assert [line.split(": ")[1] for line in told] == ["a", "b", "b", "a"]
    assert held.ratio("a", "b", "step") == contest.Spread(1.5, 1.5, 1.5)
    # A slow round that both had does not show.
    held.rounds = {"a": [{"step": 3.0}, {"step": 30.0}], "b": [{"step": 2.0}, {"step": 20.0}]}
    assert held.ratio("a", "b", "step") == contest.Spread(1.5, 1.5, 1.5)


def test_a_contender_that_fails_says_why(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no such device')")
    with pytest.raises(RuntimeError, match=r"(?s)a failed:.*no such device"):
        contest.Contender("a", program).run()


def test_spread_and_verdict():
    spread = contest.Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert spread.median == 3.0
    assert 1.0 <= spread.low < 3.0 < spread.high <= 100.0
    assert contest.Claim("", spread, 3.0).verdict == "PASS"
    assert contest.Claim("", spread, 2.9).verdict == "FALLS SHORT"
    assert contest.Claim("", spread).verdict == "-"
