import json
import re
import sys

import pytest
from fresh import COMMAND, ROOT, forked, run

import colonnade as cn


def test_doctor():
    done = run([COMMAND, "doctor", "--json"])
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == int(any(f["state"] == "blocks" for f in findings.values()))
    assert {"driver and CUDA", "device order", "peer access", "IOMMU", "/dev/shm"} <= findings.keys()
    assert {"memory taken", "locked memory", "threads per device"} <= findings.keys()
    assert all(finding["why"] for finding in findings.values())


def test_doctor_of_a_recorded_machine():
    done = run([COMMAND, "doctor", "--machine", "consumer"])
    assert done.returncode == 0
    assert "0-1 (PHB), 2-3 (PHB)" in " ".join(done.stdout.split())
    assert "ask linus about 31337" in done.stdout


@pytest.mark.long
def test_selftest(tmp_path):
    from colonnade.run.selftest.selftest import CHECKS

    done = run([COMMAND, "selftest", "--devices", "4", "--bundle", str(tmp_path / "bundle.json")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"passed +set-up .* 4 devices: CPU:0, CPU:1, CPU:2, CPU:3", done.stdout)
    assert "12 passed, 0 failed, 2 not applicable." in done.stdout
    assert "WARNING:tensorflow" not in done.stderr
    written = json.loads((tmp_path / "bundle.json").read_text())
    assert [result["check"] for result in written["results"]] == [check.name for check in CHECKS]
    assert written["versions"]["colonnade"] == cn.__version__


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("passed", 0)])
def test_selftest_tells_by_its_exit_code_and_json(monkeypatch, tmp_path, state, code):
    from typer.testing import CliRunner

    from colonnade.cli import app
    from colonnade.run.selftest import selftest
    from colonnade.run.selftest.verdict import Result

    result = Result("a", "b", "c", state, "d", 0.1, {})
    monkeypatch.setattr(selftest, "examine", lambda devices: iter([result]))
    done = CliRunner().invoke(app, ["selftest", "--json", "--bundle", str(tmp_path / "bundle.json")])
    assert done.exit_code == code
    assert json.loads(done.stdout)["results"][0]["state"] == state
    assert json.loads(done.stdout) == json.loads((tmp_path / "bundle.json").read_text())


QUICK = """
import sys
from colonnade.run.selftest import selftest
from colonnade.run.selftest.verdict import Result
selftest.start = lambda count: ("/device:CPU:0",)
selftest.examine = lambda devices: iter([Result("a", "b", "c", "passed", "d", 0.1, {})])
from colonnade.cli import main
sys.argv[0] = "colonnade"
main()
"""


@pytest.mark.long
def test_the_bundle_may_be_the_standard_output():
    """Written once, and nothing beside it: in a file, two who write would overwrite each other."""
    done = forked(["-c", QUICK, "selftest", "--bundle", "/dev/stdout"])  # its standard output is a file
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["format"] == 1


def test_a_disk_that_is_full_gives_one_message():
    done = forked(["-c", QUICK, "selftest", "--bundle", "/dev/full"])
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "No space left on device" in done.stderr


def test_a_bundle_that_must_not_be_written_is_told_before_the_work(tmp_path, monkeypatch):
    from colonnade.cli import machine as cli

    (tmp_path / "kept.json").write_text("old")
    monkeypatch.setattr(cli.os, "access", lambda path, mode: path != tmp_path / "kept.json")
    with pytest.raises(cn.InvalidArgument, match="cannot be written"):
        cli.selftest(bundle=tmp_path / "kept.json")
    assert (tmp_path / "kept.json").read_text() == "old"


def test_a_bad_selftest_is_one_message_and_exit_code_2(tmp_path):
    for options in (["--bundle", str(tmp_path / "missing" / "x.json")], ["--devices", "0"]):
        done = forked([COMMAND, "selftest", *options])
        assert done.returncode == 2
        assert "cannot work with" in done.stderr
        assert "Traceback" not in done.stderr


def test_commands_that_look_at_cards_need_no_tensorflow():
    program = (
        "import sys; from colonnade.cli import app; app(['devices'], standalone_mode=False);"
        "print('tensorflow' in sys.modules)"
    )
    assert run([sys.executable, "-c", program]).stdout.strip().endswith("False")


PAGE = (ROOT / "docs" / "machine.md").read_text()
README = (ROOT / "README.md").read_text()
SCREENS = re.findall(r"```\n\$ (colonnade [^\n]*--machine .*?)\n```", PAGE + README, re.DOTALL)


def test_the_documentation_lists_every_check():
    from colonnade.run.selftest.selftest import CHECKS

    (listed,) = re.findall(r"## `colonnade selftest`(.*?)\n## ", PAGE, re.DOTALL)
    assert re.findall(r"^ (?:passed|n/a) +(.*?)  +\d+\.\d s", listed, re.M) == [
        check.name for check in CHECKS
    ]


@pytest.mark.parametrize("shown", SCREENS)
def test_screens_in_the_documentation(shown):
    command, _, screen = shown.partition("\n")
    out = run([COMMAND, *command.split()[1:]]).stdout.strip("\n")
    assert [line.rstrip() for line in out.splitlines()] == screen.splitlines()


def test_the_example_in_the_documentation():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (said,) = re.findall(r"It prints `(.*?)`", PAGE)
    assert run([sys.executable, "-c", code]).stdout.strip() == said


def test_only_this_machine_can_be_measured():
    done = run([COMMAND, "devices", "--measure", "--machine", "dgx1"])
    assert done.returncode == 2
    assert "is for this machine" in done.stderr
