import shlex
import subprocess

import pytest
from fresh import COMMAND, ROOT

import colonnade as cn
from colonnade.sweeps.repeat import fixed, repeat_line
from colonnade.sweeps.settings import SweepSettings


def test_lines_that_repeat_a_trial():
    objective = SweepSettings(objective="train:goal", virtual=4, cards=2)
    params = {"rate": 0.1, "kind": "a b", "size": "64", "deep": True}
    line = shlex.split(repeat_line(objective, params))
    assert line[:3] == ["colonnade", "sweep", "train:goal"]
    assert line[-4:] == ["--cards", "2", "--virtual", "2"]
    assert fixed([line[i + 1] for i, part in enumerate(line) if part == "--fix"]) == params
    command = SweepSettings(command=("sh", "run.sh", "{rate}"), virtual=4)
    assert (
        repeat_line(command, {"rate": 0.1, "width": 64})
        == "colonnade run --virtual 1 -- env COLONNADE_PARAM_width=64 sh run.sh 0.1"
    )


def test_what_is_no_parameter():
    with pytest.raises(cn.InvalidArgument, match="--fix='rate'"):
        fixed(["rate"])


def repeated(tmp_path, *what):
    places = ["--folder", str(tmp_path), "--leases", str(tmp_path / "leases"), "--virtual", "1"]
    command = [COMMAND, "sweep", *places, *what]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT / "tests")


def test_a_trial_is_repeated_from_its_beginning(tmp_path):
    for x, value in ((0.5, 0.25), (2.0, 4.0)):
        done = repeated(tmp_path, "objectives:empty", "--fix", f"x={x}")
        assert (done.returncode, done.stdout) == (0, f"value={value}\n"), done.stderr
        (again,) = tmp_path.rglob("again")
        assert not list(again.rglob("left_behind"))
        (again / "checkpoint").mkdir(exist_ok=True)
        (again / "checkpoint" / "left_behind").touch()


def test_a_program_has_no_parameters_to_fix(tmp_path):
    done = repeated(tmp_path, "--fix", "a=1", "--", "echo", "a={a}")
    assert done.returncode == 2
    assert "--fix='a=1': is for an objective in Python" in done.stderr
    assert "Traceback" not in done.stderr
