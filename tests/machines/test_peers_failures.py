"""Machines that are killed, hang or are told to end: the others notice and end, and nothing is lost."""

import ast
import shutil

import numpy as np
import pytest
from fresh import ROOT, forked
from together import run_on_machines

from colonnade.errors import RESUMABLE


def saved(folder):
    return sorted(p.name for p in folder.iterdir() if p.name.startswith("step-"))


def told(one, what):
    """What a machine said last of something."""
    return ast.literal_eval([line for line in one.said("SAID") if line.startswith(what)][-1][len(what) + 1 :])


def test_a_killed_machine_is_noticed_within_a_second(tmp_path):
    first, last = run_on_machines("killed", tmp_path, [1, 1])
    assert (first.code, last.code) == (RESUMABLE, -9)
    assert first.when - told(last, "now") < 1.0
    assert "m1 has ended" in first.err
    assert "start all machines again" in first.err
    assert saved(tmp_path) == ["step-000000000005"]


def test_a_machine_that_hangs_is_noticed_within_five_seconds(tmp_path):
    first, last = run_on_machines("stopped", tmp_path, [1, 1], patience=2)
    assert (first.code, last.code) == (RESUMABLE, -9)
    assert first.when - told(last, "now") < 5.0 + 1.5  # a beat, and the look at beats
    assert "m1 was not heard for" in first.err


def test_all_finish_the_same_step_save_once_and_go_on_on_one_machine(tmp_path):
    """SIGTERM comes to one machine of two. What was saved goes on as if it had never been cut."""
    ended = run_on_machines("interrupted", tmp_path / "cut", [1, 1])
    assert [one.code for one in ended] == [RESUMABLE] * 2, ended[0].err
    assert saved(tmp_path / "cut") == ["step-000000000005", "step-000000000007"]
    program = [str(ROOT / "tests" / "machine_runs.py"), "train"]
    went_on = alone(forked([*program, str(tmp_path / "cut"), "2"]))
    unbroken = alone(forked([*program, str(tmp_path / "whole"), "2"]))
    assert went_on["resumed"] == 7
    np.testing.assert_allclose(went_on["losses"], unbroken["losses"][7:], rtol=1e-10)
    for one, other in zip(went_on["parameters"], unbroken["parameters"], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def alone(done):
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("SAID")]
    return {name: ast.literal_eval(value) for name, value in lines}


@pytest.mark.long
def test_a_keras_training_goes_on_after_a_kill_on_any_number_of_machines_and_devices(tmp_path):
    first, last = run_on_machines("fit_killed", tmp_path / "cut", [1, 1])
    assert (first.code, last.code) == (RESUMABLE, -9), first.err
    assert first.when - told(last, "now") < 1.0
    assert saved(tmp_path / "cut") == ["step-000000000005"]
    shutil.copytree(tmp_path / "cut", tmp_path / "other")
    program = [str(ROOT / "tests" / "machine_runs.py"), "fit"]
    unbroken = alone(forked([*program, str(tmp_path / "whole"), "1"]))
    ends = [alone(forked([*program, str(tmp_path / "cut"), "3"]))]
    for one in run_on_machines("fit", tmp_path / "other", [2, 1]):
        assert one.code == 0, one.err
        ends.append({name: told(one, name) for name in unbroken})
    for end in ends:
        assert end["history"].keys() == unbroken["history"].keys()
        for name, values in end["history"].items():
            np.testing.assert_allclose(values, unbroken["history"][name], rtol=1e-10)
        for value, other in zip(end["parameters"], unbroken["parameters"], strict=True):
            np.testing.assert_allclose(value, other, rtol=1e-10, atol=1e-12)


@pytest.mark.long
def test_a_machine_that_hangs_in_a_keras_training_is_noticed_within_five_seconds(tmp_path):
    first, last = run_on_machines("fit_stopped", tmp_path, [1, 1], patience=2)
    assert (first.code, last.code) == (RESUMABLE, -9), first.err
    assert first.when - told(last, "now") < 5.0 + 1.5  # a beat, and the look at beats
    assert "m1 was not heard for" in first.err


def test_data_that_end_sooner_on_one_machine_are_told(tmp_path):
    ended = run_on_machines("shorter", tmp_path, [1, 1])
    for one in ended:
        assert one.code == 1
        assert "m1 has come to the end of its data, and m0 trains on" in one.err
    assert saved(tmp_path) == []


def test_data_that_fail_on_one_machine_are_told_by_it_and_nobody_starts_again(tmp_path):
    ended = run_on_machines("failing", tmp_path, [1, 1])
    assert [one.code for one in ended] == [1, 1], ended[0].err[-2000:]
    assert "a file is broken" in ended[1].err
    assert "m1 failed: InvalidArgumentError" in ended[0].err


@pytest.mark.long
def test_a_machine_that_leaves_for_a_reason_is_not_waited_for_again(tmp_path):
    first, last = run_on_machines("leaving", tmp_path, [1, 1])
    assert "m1 failed: it ended with: there is nothing in /data" in first.err
    assert [first.code, last.code] == [1, 1]
    assert "there is nothing in /data" in last.err


def test_sigterm_ends_a_machine_that_trains_nothing(tmp_path):
    first, last = run_on_machines("told", tmp_path, [1, 1])
    assert (first.code, last.code) == (RESUMABLE, -15)
    assert "m1 has ended" in first.err


@pytest.mark.long
def test_a_port_that_is_taken_asks_for_another_start(tmp_path):
    first, last = run_on_machines("taken", tmp_path, [1, 1], COLONNADE_JOIN_SECONDS="8")
    assert (first.code, last.code) == (RESUMABLE, RESUMABLE)
    assert "another program listens there" in last.err


@pytest.mark.long
def test_an_op_that_never_ends_is_noticed_while_python_goes_on(tmp_path):
    """All machines are in the same step then, and none of them is silent."""
    first, last = run_on_machines("stuck", tmp_path, [1, 1])
    assert (first.code, last.code) == (RESUMABLE, RESUMABLE)
    assert first.when - told(last, "now") < 5.0 + 2.0  # beats, and the look at them
    assert "no machine ends its step" in first.err
