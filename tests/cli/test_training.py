import json
import sys

import pytest
from fresh import COMMAND, forked, run

import colonnade as cn

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
        (["--workload", "pyproject.toml", "--network", "10Gb"], "nothing says how many"),
    ],
)
def test_mistakes_of_a_plan_show_no_traceback(options, said):
    done = run([COMMAND, "plan", *options])
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
