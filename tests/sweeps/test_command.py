import json

import pytest

from colonnade.sweeps.command import Command, ending
from colonnade.sweeps.trial_folder import TrialFolder


@pytest.fixture
def folder(tmp_path):
    made = TrialFolder(tmp_path)
    made.make()
    return made


def test_parameters_go_into_arguments_and_the_environment():
    command = Command(("train", "{rate}", "--kind={kind}", "{{rate}}", '{"a": {}}', "{ rate }"))
    params = {"rate": 1e-5, "kind": "a b", "deep": True}
    assert command.filled(params) == ["train", "1e-05", "--kind=a b", "{rate}", '{"a": {}}', "{ rate }"]
    assert command.environment(params)["COLONNADE_PARAM_deep"] == "true"
    assert command.placeholders == ("rate", "kind")


def test_a_placeholder_without_a_parameter():
    (problem,) = Command(("train", "{rate}", "{width}")).problems(["rate"])
    assert problem.value == "{width}"
    assert "--grid width=" in problem.fix


@pytest.mark.parametrize(
    ("log", "value"),
    [
        ("loss=0.5\n", 0.5),
        ("loss=0.5\naccuracy = 9.1e-1\nbye\n", 0.91),
        ("epoch 1: loss=0.5\nval/loss=-3\n", -3.0),
        ("\x1b[1mloss=2\x1b[0m", 2.0),
    ],
)
def test_the_last_line_that_reads_name_is_value_counts(folder, log, value):
    folder.log.write_text(log)
    assert ending(0, folder).value == value


@pytest.mark.parametrize(
    ("says", "value"), [({"value": 3}, 3.0), ({"accuracy": 0.5}, 0.5), (7, 7.0), ({"value": 1, "b": 2}, 1.0)]
)
def test_a_result_file_goes_before_the_log(folder, says, value):
    folder.log.write_text("loss=0.5\n")
    folder.result.write_text(json.dumps(says))
    assert ending(0, folder).value == value


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2}', "[1]", "{", '{"value": true}', '{"value": NaN}', ""])
def test_a_result_file_that_cannot_be_used(folder, text):
    folder.result.write_text(text)
    assert ending(0, folder).kind == "failed"


def test_no_result_and_one_of_an_earlier_attempt(folder):
    folder.log.write_text("loss=0.5\n")
    assert "no result" in ending(0, folder, begin=9).reason
    assert ending(3, folder).reason == "exit code 3"
