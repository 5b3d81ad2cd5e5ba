"""oneDNN is switched on before TensorFlow comes, whoever decided is obeyed, and what is lost is told once."""

import json
import sys

import pytest
from fresh import run

from colonnade.hardware import onednn

pytestmark = pytest.mark.skipif(not onednn.on_x86(), reason="oneDNN is for x86 processors here")

# Whether the variable is set, whether TensorFlow uses oneDNN, and what cn.setup says, twice.
PROGRAM = """
import json, os, warnings
{first}
import colonnade as cn
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    cn.setup(virtual=2)
    cn.setup(virtual=2)
from colonnade.hardware import onednn
heard = [str(w.message) for w in said if w.category is onednn.SlowTensorFlow]
print(json.dumps([os.environ.get(onednn.VARIABLE), onednn.is_on(), heard]))
"""
# TensorFlow as it is on a processor where it leaves oneDNN off, and nobody knows of the variable.
LEFT_OFF = f"import tensorflow; del os.environ[{onednn.VARIABLE!r}]"


def told(first="", **environment):
    done = run([sys.executable, "-c", PROGRAM.format(first=first)], **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_colonnade_first():
    assert told(f"os.environ.pop({onednn.VARIABLE!r}, None)") == ["1", True, []]


@pytest.mark.long
def test_whoever_switches_it_off_is_obeyed():
    assert told(**{onednn.VARIABLE: "0"}) == ["0", False, []]


@pytest.mark.long
def test_tensorflow_first_without_it_is_told_once_with_the_line_that_helps():
    variable, on, heard = told(LEFT_OFF, **{onednn.VARIABLE: "0"})
    assert (variable, on) == (None, False)
    (words,) = heard
    assert words.startswith("TensorFlow runs without oneDNN")
    assert words.endswith("Export TF_ENABLE_ONEDNN_OPTS=1, or import colonnade before tensorflow.")


def test_the_environment_as_it_was_found(monkeypatch):
    given = {onednn.VARIABLE: "1", "HOME": "here"}
    monkeypatch.setattr(onednn, "_ours", False)
    assert onednn.as_found(given) == given
    monkeypatch.setattr(onednn, "_ours", True)
    assert onednn.as_found(given) == {"HOME": "here"}


def test_not_where_tensorflow_is_there_already_nor_on_other_processors(monkeypatch):
    environment = {}
    onednn.switch_on(environment)  # TensorFlow was imported with these tests
    assert environment == {} or "tensorflow" not in sys.modules
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    onednn.switch_on(environment)
    assert environment == {}
    monkeypatch.setattr("platform.machine", lambda: "AMD64")
    monkeypatch.setattr(onednn, "_ours", False)
    onednn.switch_on(environment)
    assert environment == {onednn.VARIABLE: "1"}
