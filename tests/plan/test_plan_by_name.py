import sys

import pytest

from colonnade.errors import InvalidArgument
from colonnade.run.plan import workload
from colonnade.run.plan.plan_by_name import plan_by_name

MODULE = """
import tensorflow as tf
w = tf.Variable([[1.0]])
def loss(x, y):
    return tf.squeeze((x @ w - y) ** 2, axis=1)
loss_example = (tf.ones([64, 1]), tf.ones([64, 1]))
def other(x):
    return x
other_example = {"x": tf.ones([4])}
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "planned.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(workload, "SECONDS", 0.02)
    yield
    sys.modules.pop("planned", None)


def planned(name="planned:loss", **more):
    options = {"devices": 8, "topology": None, "optimizer": "sgd", "rows": 8, "keep": {}}
    return plan_by_name(name, **{**options, **more})


def test_a_function_is_measured_on_its_example():
    plan = planned()
    assert plan.batch == 64
    assert plan.advice


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "planned:los"}, "has no 'los'"),
        ({"optimizer": "adamant"}, "no optimizer"),
        ({"name": "planned:other"}, "is a dict"),
    ],
)
def test_mistakes_are_those_of_the_command(arguments, said):
    with pytest.raises(InvalidArgument, match=said) as error:
        planned(**arguments)
    assert str(error.value).startswith("plan cannot work with")
