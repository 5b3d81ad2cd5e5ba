import json
import re
import sys

import pytest
from fresh import COMMAND, ROOT, forked, run

import colonnade as cn


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_a_mistake_shows_no_traceback():
    done = run([COMMAND, "dmeo"])
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


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


def test_plan_for_a_recorded_machine_needs_no_tensorflow(tmp_path):
    sizes = {"hidden": 1536, "layers": 16, "heads": 24, "sequence": 2048, "vocabulary": 51200, "batch": 16}
    file = tmp_path / "gpt.json"
    file.write_text(cn.Workload.transformer(**sizes).to_json())
    program = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None; from colonnade.cli import main;"
        f"sys.argv = ['colonnade', 'plan', '--workload', {str(file)!r}, '--machine', 'dgx1']; main()"
    )
    done = run([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    first, _, head, chosen, *_ = done.stdout.splitlines()
    assert first.startswith("Use 8 devices as ")
    assert "examples/s" in head
    assert chosen.startswith("* ")
    assert "does not fit: a device needs" in done.stdout


def test_plan_as_json_is_a_plan(tmp_path):
    file = tmp_path / "net.json"
    file.write_text(cn.Workload.convnet(parameters=25_000_000, flops=8e9, batch=256).to_json())
    options = ["--machine", "dgx1", "--machines", "2", "--network", "100Gb", "--keep", "variables=mirrored"]
    done = run([COMMAND, "plan", "--workload", str(file), *options, "--json"])
    plan = cn.Plan.from_json(done.stdout)
    assert plan.num_devices == 16
    assert plan.variables == "mirrored"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "must be given"),
        (["--workload", "no such file"], "cannot be read"),
        (["--workload", "pyproject.toml"], "is not JSON"),
        (["--workload", "pyproject.toml", "--machine", "dgx9"], "no such machine"),
        (["train:loss", "--workload", "pyproject.toml"], "one of them"),
    ],
)
def test_mistakes_of_a_plan_show_no_traceback(options, said):
    done = run([COMMAND, "plan", *options])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_only_this_machine_can_be_measured():
    done = run([COMMAND, "devices", "--measure", "--machine", "dgx1"])
    assert done.returncode == 2
    assert "is for this machine" in done.stderr
