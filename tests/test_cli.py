import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fresh import ROOT, forked, run

import colonnade as cn

COMMAND = str(Path(sys.executable).with_name("colonnade"))


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_demo():
    done = run([COMMAND, "demo"], PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"\| +(\d) \| +([\d,]+) \| +([\d.]+) \| +([\d.]+)% \|", done.stdout)
    (first, _, same, one), (num_devices, _, _, every) = shown
    assert (first, same) == ("1", "1.00")
    assert int(num_devices) >= 2
    assert min(float(one), float(every)) > 95
    assert re.search(r"medians of \d turns; the speed-up of a turn was [\d.]+ to [\d.]+", done.stdout)
    # Sums of float32 in another order, over 120 steps: as far apart as on one device, whatever its kernels.
    difference, rounding = (
        float(re.search(rf"{words}: (\S+)", done.stdout).group(1)) for words in ("the two", "another order")
    )
    assert 0 < difference < 4 * rounding < 1e-2
    assert re.search(r"0 +\| CPU:0 +\| CPU:0", done.stdout)
    assert re.search(r"1 +\| CPU:1 +\| CPU:1", done.stdout)
    assert "Try next" in done.stdout


def test_devices():
    assert "cores" in run([COMMAND, "devices"]).stdout
    facts = json.loads(run([COMMAND, "devices", "--json"]).stdout)
    assert facts["cpu"]["cores"] >= 1
    assert isinstance(facts["cards"], list)


def test_a_mistake_shows_no_traceback():
    done = run([COMMAND, "dmeo"])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_devices_of_a_recorded_machine():
    shown = run([COMMAND, "devices", "--machine", "dgx1"]).stdout
    assert re.search(r"0 +X +NV1 +NV1 +NV2 +NV2 +SYS! +SYS! +SYS!", shown)
    assert re.search(r"card 3 +21002 +grace +14\.0 GiB", shown)
    assert "no peer access" in shown
    facts = json.loads(run([COMMAND, "devices", "--machine", "mig", "--json"]).stdout)
    assert [part["memory"] for part in facts["cards"][0]["instances"]] == [20 * 2**30, 10 * 2**30, 5 * 2**30]
    assert "article, dgx1" in run([COMMAND, "devices", "--machine", "dgx9"]).stderr


def test_devices_draws_a_pasted_matrix(tmp_path):
    pasted = tmp_path / "topology.txt"
    pasted.write_text(
        "$ nvidia-smi topo -m\n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n"
    )
    shown = run([COMMAND, "devices", "--topology", str(pasted)]).stdout
    assert re.search(r"1 +NV4 +X", shown)
    assert "80 GB/s" in shown
    plain = run([COMMAND, "devices", "--topology", str(pasted), "--json"]).stdout
    assert cn.Topology.from_json(plain) == cn.Topology.from_text(pasted.read_text())
    pasted.write_text("nothing of the kind")
    for path in (pasted, tmp_path / "missing"):
        done = run([COMMAND, "devices", "--topology", str(path)])
        assert done.returncode == 2
        assert "cannot work with" in done.stderr
        assert "Traceback" not in done.stderr


def test_colours_on_a_terminal():
    from rich.console import Console

    from colonnade.show.machine import links

    console = Console(force_terminal=True, color_system="standard", width=80)
    with console.capture() as captured:
        console.print(links(cn.Topology.groups([[0, 1], [2, 3]])))
    assert "\x1b[33mPHB" in captured.get()
    assert "\x1b[31mSYS!" in captured.get()


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
    assert "11 passed, 0 failed, 2 not applicable." in done.stdout
    assert "WARNING" not in done.stderr
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
    from colonnade import cli

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


def test_run_and_leases(tmp_path):
    leases = str(tmp_path / "leases")
    show = [sys.executable, COMMAND, "leases", "--leases", leases]
    options = ["--virtual", "2", "--cards", "1", "--memory", "0.5", "--leases", leases]
    # Options after the program's name are the program's.
    done = run([COMMAND, "run", *options, *show, "--json"])
    (lease,) = json.loads(done.stdout)
    assert lease["cards"] == ["virtual:0"]
    assert (lease["memory"], lease["waits_for"], lease["command"]) == (0.5, 0, [*show, "--json"])
    table = run([COMMAND, "run", *options, "--", *show], COLUMNS="200").stdout
    assert re.search(r"virtual:0 +│ +50% │", table)
    assert "No card is leased" in run(show).stdout
    assert json.loads(run([*show, "--json"]).stdout) == []


def test_leases_shows_who_waits():
    from rich.console import Console

    from colonnade.fleet.lease import LeaseClaim
    from colonnade.fleet.records import LeaseRecord
    from colonnade.show.leases import facts, table

    def claim(number, slots=()):
        when = "2026-05-04T09:12:00.000000+00:00"
        return LeaseClaim(
            ("a", "b"), 2, "0.5", ("python", "\x1b[2Jx.py"), "ada", 7, "box", when, slots, number
        )

    line = [claim(1, ("a", "b")), claim(2), claim(3), LeaseClaim.read(LeaseRecord(4, 12345, None))]
    console = Console(width=120)
    with console.capture() as text:
        console.print(table(line))
    assert "python ?[2Jx.py" in text.get()  # what others wrote does not steer this terminal
    assert re.findall(r"│ (a|b|any|#\d in line, for 2) ", text.get()) == [
        "a",
        "b",
        "any",
        "#1 in line, for 2",
        "#2 in line, for 2",
    ]
    assert "4.json cannot be read, so no card is given" in text.get()
    assert [(fact["readable"], fact["cards"], fact["waits_for"]) for fact in facts(line)] == [
        (True, ["a", "b"], 0),
        (True, [], 2),
        (True, [], 2),
        (False, [], 0),
    ]


def test_leases_can_be_watched(tmp_path, monkeypatch):
    from rich.console import Console

    from colonnade.show import leases

    watch = [COMMAND, "leases", "--watch", "--json", "--leases", str(tmp_path)]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout.readline() == "[]\n"
        shown.send_signal(signal.SIGINT)
        assert shown.communicate(timeout=10)[0] == ""
        assert shown.returncode == 0

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(leases.time, "sleep", interrupt)
    console = Console(width=100)
    with console.capture() as text:
        leases.show(console, tmp_path, as_json=False, watch=True)
    assert "No card is leased" in text.get()


def test_a_bad_run_is_one_message_and_exit_code_2(tmp_path):
    done = run([COMMAND, "run", "--virtual", "2", "--cards", "3", "--memory", "7", "--", "no-such-program"])
    assert done.returncode == 2
    assert [line.split("=")[0].strip() for line in done.stderr.splitlines()[1:]] == [
        "command",
        "--cards",
        "--memory",
    ]
    assert "Traceback" not in done.stderr


MODULE = """
import tensorflow as tf

print("a note of the module")
w = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="w")

@tf.function(input_signature=[tf.TensorSpec([None, 2])])
def model(x):
    return tf.nn.elu(x @ w)

def loss(x, y):
    return tf.reduce_mean((x @ w - y) ** 2)

def loss_example():
    return tf.random.stateless_normal([13, 2], [1, 2]), tf.ones([13, 2])

def fails(x):
    return tf.linalg.inv(x)
fails_example = (tf.zeros([9, 2, 2]),)
"""


def test_verify(tmp_path):
    """Equal is 0, not equal is 1, a mistake is 2 and shows no traceback."""
    (tmp_path / "study.py").write_text(MODULE)

    def verify(*arguments):
        return forked([COMMAND, "verify", *arguments], cwd=tmp_path)

    equal = verify("study:model", "--devices", "4")
    assert equal.returncode == 0, equal.stderr
    assert "4 devices and one: equal." in equal.stdout
    different = verify("study:loss", "--json")
    assert different.returncode == 1, different.stderr
    report = json.loads(different.stdout)
    assert not report["equal"]
    assert report["causes"] == ["mean"]
    assert report["devices"] == ["/device:CPU:0", "/device:CPU:1"]
    assert {row["leaf"] for row in report["rows"]} >= {"output", "gradient of w:0"}
    mistake = verify("study:fails", "--devices", "3", "--join", "mean")
    assert mistake.returncode == 2
    assert "calling it with the example failed: InvalidArgumentError: on CPU:0" in mistake.stderr
    assert "Traceback" not in mistake.stderr
