import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.parallel.load import load

MODULE = """
import numpy as np, tensorflow as tf

X = np.ones([9, 2], "float32")

def twice(x): return 2 * x
twice_example = (X,)

def named(x, scale): return x * scale
def named_example(): return {"x": X, "scale": 2.0}

def bare(x): return x
def add(x, y): return x + y
other = (X, X)
bare_value = X
def broken_example(): raise RuntimeError("no data here")

@tf.function(input_signature=[
    tf.TensorSpec([None, 3]),
    {"ids": tf.TensorSpec([None], tf.int32), "words": tf.TensorSpec([None, None], tf.string)},
    tf.TensorSpec([], tf.float64), tf.TensorSpec([None], tf.bool),
])
def signed(x, rest, scale, flags): return x

@tf.function(input_signature=[tf.TensorSpec([32, 3]), tf.TensorSpec(None), tf.RaggedTensorSpec([None, None])])
def fixed(x, y, z): return x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory with a module of its own name per test, because Python keeps modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"module_{tmp_path.name}"

    def write(text, name=name):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        return name

    yield write
    sys.modules.pop(name, None)


def test_examples(folder):
    name = folder(MODULE)
    twice = load(f"{name}:twice")
    assert np.array_equal(twice.fn(*twice.args), 2 * np.ones([9, 2]))
    named = load(f"{name}:named")
    assert named.args == ()
    assert np.array_equal(named.fn(**named.kwargs), 2 * np.ones([9, 2]))
    assert len(load(f"{name}:add", "other").args) == 2


def test_random_inputs_from_a_signature(folder):
    loaded = load(f"{folder(MODULE)}:signed", rows=5)
    x, rest, scale, flags = loaded.args
    assert x.shape == [5, 3]
    assert rest["ids"].dtype == tf.int32
    assert set(rest["ids"].numpy()) <= {0, 1}
    assert rest["words"].shape[0] == 5
    assert scale.shape == []
    assert flags.dtype == tf.bool
    assert loaded.fn(*loaded.args) is not None


@pytest.mark.parametrize(
    ("asked", "example", "says"),
    [
        ("twice", None, r"function='twice': must be module:function\. For example"),
        ("{}:", None, "must be module:function"),
        ("nowhere:f", None, "there is no module 'nowhere' in .*Run it in the folder"),
        ("{}.inner:f", None, "there is no module '{}.inner'|{} is not a package"),
        ("{}.py:twice", None, "is a file; a module has no suffix. Write {}:twice"),
        ("{}:twise", None, "{} has no 'twise'. It has: twice"),
        ("{}:X", None, "is a ndarray, not a function"),
        (
            "{}:bare",
            None,
            "example='bare_example': .* no tf.function with an input_signature. Define a batch",
        ),
        ("{}:bare", "nothing", "example='nothing': {} has no 'nothing'. Define a batch"),
        ("{}:bare", "bare_value", r"is a ndarray; it must be a tuple .* bare_value = \(x,\)"),
        ("{}:bare", "broken_example", "calling it failed: RuntimeError: no data here"),
        ("{}:fixed", None, "(?s)fixes the batch at 32 rows.*nothing can be drawn.*nothing can be drawn"),
    ],
)
def test_mistakes(folder, asked, example, says):
    name = folder(MODULE)
    with pytest.raises(cn.InvalidArgument, match=says.replace("{}", name)):
        load(asked.format(name), example)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1\nvalue = y", r"importing .* failed: NameError: name 'y' is not defined \(at .*:2\)"),
        (
            "import no_such_package",
            "importing .* failed: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("import sys; sys.exit(1)", "importing .* failed: SystemExit: 1"),
        ("import colonnade as cn; cn.setup(virtual=3)", "starts TensorFlow's devices in another way"),
    ],
)
def test_a_module_that_cannot_be_imported(folder, text, says):
    with pytest.raises(cn.InvalidArgument, match=says):
        load(f"{folder(text)}:f")
