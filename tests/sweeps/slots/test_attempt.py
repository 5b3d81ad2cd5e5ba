"""What programs and objectives do in a slot; each test is one sweep."""

import json

import pytest

from colonnade.sweeps.slots.attempt import _position


def folders(swept):
    return sorted((swept.folder / "trials").iterdir())


def facts(folder):
    return json.loads((folder / "trial.json").read_text())["attempts"]


def test_an_objective_that_prints_binary_forks_and_changes_directory(sweep, states):
    swept = sweep("rude", trials=3, reuse=True)
    assert states(swept.study) == ["COMPLETE"] * 3
    for folder in folders(swept):
        assert (folder / "log.txt").read_bytes().count(bytes(range(256))) == 4
        assert facts(folder)[0]["end"] == "complete"


def test_a_trial_that_is_killed_goes_on_from_its_checkpoint(sweep, states):
    swept = sweep("dying", trials=1, retries=1)
    assert states(swept.study) == ["COMPLETE"]
    assert swept.study.best_value == 42.0
    (folder,) = folders(swept)
    assert [(one["end"], one["exit"]) for one in facts(folder)] == [("cut", 137), ("complete", 0)]
    assert facts(folder)[1]["cards"] in (["virtual:0"], ["virtual:1"])
    assert facts(folder)[1]["seconds"] > 0


def test_a_trial_that_hangs_is_tried_again(sweep, states):
    swept = sweep("hanging", trials=1, retries=1, stall="1s")
    assert states(swept.study) == ["COMPLETE"]
    assert "no sign of life for 1 s" in facts(folders(swept)[0])[0]["reason"]


def test_an_error_is_a_failure_with_its_log_and_the_others_finish(sweep, states):
    swept = sweep("raising", trials=4)
    assert states(swept.study) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert swept.study.trials[1].user_attrs["reason"] == "ZeroDivisionError: as it happens"
    assert "Traceback" in (folders(swept)[1] / "log.txt").read_text()


def test_reports_and_pruning(sweep, states):
    swept = sweep("reported", trials=12, reuse=True, seed=3)
    assert set(states(swept.study)) == {"COMPLETE", "PRUNED"}
    trial = next(trial for trial in swept.study.trials if trial.state.name == "COMPLETE")
    assert len(trial.intermediate_values) == 5
    metrics = folders(swept)[trial.number] / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert {line["step"]: line["value"] for line in lines} == trial.intermediate_values


def test_six_settings_on_four_cards_one_of_them_crashing(sweep, states):
    crash = "test $1 != 3 || { echo it broke; exit 9; };"
    text = f"{crash} echo $COLONNADE_PARAM_b $CUDA_VISIBLE_DEVICES; echo loss=$1"
    swept = sweep(command=("sh", "-c", text, "sh", "{a}"), grid=("a=1,2,3", "b=x,y"), virtual=4, study="six")
    assert sorted(states(swept.study)) == ["COMPLETE"] * 4 + ["FAIL"] * 2
    assert swept.study.best_params["a"] == 1
    failed = [t for t in swept.study.trials if t.state.name == "FAIL"]
    assert {trial.params["a"] for trial in failed} == {3}
    assert (folders(swept)[4] / "log.txt").read_text() == "it broke\n"
    assert facts(folders(swept)[4])[0]["exit"] == 9
    assert (folders(swept)[1] / "log.txt").read_text() == "y -1\nloss=1\n"
    again = sweep(command=("sh", "-c", text, "sh", "{a}"), grid=("a=1,2,3", "b=x,y"), virtual=4, study="six")
    assert sweep.seen.lines == [], "each combination once"
    assert len(again.study.trials) == 6


def test_a_range_and_a_result_file(sweep, states):
    text = 'printf \'{"value": %s}\' "$1" > "$COLONNADE_RESULT"'
    swept = sweep(
        command=("sh", "-c", text, "sh", "{rate}"), range=("rate=0.1..0.2",), trials=3, seed=1, study="range"
    )
    assert states(swept.study) == ["COMPLETE"] * 3
    for trial in swept.study.trials:
        assert trial.value == pytest.approx(trial.params["rate"])
        assert 0.1 <= trial.params["rate"] <= 0.2


def test_true_and_one_are_two_choices():
    assert [_position(choice, [1, True, 1.0, "1"]) for choice in (1, True, 1.0, "1")] == [0, 1, 2, 3]
