"""What goes in as data arrives in the loss function as it was."""

from collections import OrderedDict, namedtuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

Pair = namedtuple("Pair", ["z", "a"])


def trainer(loss, **options):
    return cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2, **options)


def numbered(rows, number):
    return np.full(rows, number, "float32")


def unsorted(rows):
    """Keys that are not sorted, at every level, each with a number of its own."""
    return OrderedDict(
        x=numbered(rows, 1.0),
        a={"y": numbered(rows, 2.0), "b": numbered(rows, 3.0)},
        m=Pair({"q": numbered(rows, 4.0), "p": numbered(rows, 5.0)}, numbered(rows, 6.0)),
    )


FORMS = {
    "arrays": lambda: {"data": unsorted(12), "batch_size": 4},
    "a dataset": lambda: {"data": tf.data.Dataset.from_tensor_slices(unsorted(12)).batch(4)},
    "a generator": lambda: {"data": (unsorted(4) for _ in range(3))},
    "a list": lambda: {"data": [unsorted(4) for _ in range(3)]},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.Asynchronous(), cn.LocalSGD(2)], ids=repr)
def test_a_dict_arrives_with_its_own_values(form, sync):
    w = tf.Variable(1.0)
    seen = {
        "x": lambda b: b["x"],
        "y": lambda b: b["a"]["y"],
        "b": lambda b: b["a"]["b"],
        "q": lambda b: b["m"].z["q"],
        "p": lambda b: b["m"].z["p"],
        "a": lambda b: b["m"].a,
    }

    def loss(b):
        return b["x"] * w, {name: value(b) for name, value in seen.items()}

    made = trainer(loss, sync=sync)
    history = made.fit(**FORMS[form](), progress=False)
    assert history.losses == [1.0, 1.0, 1.0]
    expected = {"x": 1.0, "y": 2.0, "b": 3.0, "q": 4.0, "p": 5.0, "a": 6.0}
    assert history.records[-1].metrics == expected
    if isinstance(sync, cn.Synchronous):
        assert made.evaluate(**FORMS[form]()).metrics == expected


def test_a_dict_arrives_in_single_steps_and_in_make_parallel():
    w = tf.Variable(1.0)
    made = trainer(lambda b: b["x"] * w + 0 * b["a"]["y"])
    assert [made.train_on_batch(unsorted(4)).loss for _ in range(2)] == [1.0, 1.0]
    found = cn.make_parallel(lambda b: {"z": b["x"], "y": b["a"]["y"], "p": b["m"].z["p"]}, 2, b=unsorted(4))
    assert {name: value.numpy().tolist() for name, value in found.items()} == {
        "z": [1.0] * 4,
        "y": [2.0] * 4,
        "p": [5.0] * 4,
    }
