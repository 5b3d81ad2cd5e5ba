import json
import re
import sys
from pathlib import Path

from fresh import run

import colonnade as cn

COMMAND = str(Path(sys.executable).with_name("colonnade"))


def test_version():
    assert run([COMMAND, "--version"]).stdout.strip() == cn.__version__


def test_demo():
    done = run([COMMAND, "demo"])
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\+5\.0000  [+-]0\.0000  \+3\.0000", done.stdout)) == 2
    assert re.search(r"0 +│ CPU:0 +│ CPU:0", done.stdout)
    assert re.search(r"1 +│ CPU:1 +│ CPU:1", done.stdout)
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
        return run([COMMAND, "verify", *arguments], cwd=tmp_path)

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
    joined = verify("study:loss", "--devices", "3", "--join", "mean")
    assert joined.returncode == 0, joined.stdout + joined.stderr
    for mistake, says in (
        (("study:los",), "study has no 'los'. It has: loss"),
        (("study:fails",), "calling it with the example failed: InvalidArgumentError: on CPU:0"),
    ):
        done = verify(*mistake)
        assert done.returncode == 2
        assert says in done.stderr
        assert "Traceback" not in done.stderr
