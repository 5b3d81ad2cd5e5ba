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
    assert line[-2:] == ["--virtual", "2"]
    assert fixed([line[i + 1] for i, part in enumerate(line) if part == "--fix"]) == params
    command = SweepSettings(command=("sh", "run.sh", "{rate}"), virtual=4)
    assert (
        repeat_line(command, {"rate": 0.1, "width": 64})
        == "colonnade run --virtual 1 -- env COLONNADE_PARAM_width=64 sh run.sh 0.1"
    )


def test_what_is_no_parameter():
    with pytest.raises(cn.InvalidArgument, match="--fix='rate'"):
        fixed(["rate"])


def test_a_trial_is_repeated(tmp_path):
    places = ["--folder", str(tmp_path), "--leases", str(tmp_path / "leases"), "--virtual", "1"]
    done = subprocess.run(
        [COMMAND, "sweep", "objectives:empty", "--fix", "x=0.5", *places],
        capture_output=True,
        text=True,
        cwd=ROOT / "tests",
    )
    assert (done.returncode, done.stdout) == (0, "value=0.25\n"), done.stderr
