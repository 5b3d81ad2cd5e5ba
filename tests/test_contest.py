"""The statistics under the benchmarks, with contenders that print what they are told."""

import importlib.util
import subprocess

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


CHATTY = """
import json, sys
sys.stdout.write("host:7:9 [0] NCCL INFO Channel 00/0 :")
print("", json.dumps({"step": 2.0}), sep=chr(10))
print("host:7:9 [0] NCCL INFO comm 0x7f - Destroy COMPLETE")
print("7")
"""


def test_figures_are_found_among_what_libraries_print(tmp_path, capfd):
    """As with NCCL_DEBUG=INFO: before, cut off in the middle of a line, and after."""
    program = tmp_path / "program.py"
    program.write_text(CHATTY)
    assert contest.Contender("a", program).run() == {"step": 2.0}
    told = capfd.readouterr()
    assert told.out == ""
    assert "Channel 00/0" in told.err
    assert "Destroy COMPLETE" in told.err
    assert "step" not in told.err
    program.write_text("print('NCCL INFO nothing else')")
    with pytest.raises(RuntimeError, match="a printed no figures"):
        contest.Contender("a", program).run()


def test_a_contender_has_as_long_as_it_is_given(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        contest.Contender("a", program, patience=0.2).run()


def test_spread_and_verdict():
    spread = contest.Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert spread.median == 3.0
    assert 1.0 <= spread.low < 3.0 < spread.high <= 100.0
    assert contest.Claim("", spread, 3.0).verdict == "PASS"
    assert contest.Claim("", spread, 2.9).verdict == "FALLS SHORT"
    assert contest.Claim("", spread).verdict == "-"
