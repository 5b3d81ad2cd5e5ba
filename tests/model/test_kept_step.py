"""When a step is used again."""

import copy

import keras
import numpy as np

from colonnade.run.model.kept_step import keep, kept


def model():
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(3), keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def test_a_step_is_kept_for_the_same_devices_until_the_model_is_another():
    made, step = model(), object()
    assert kept(made, "train", ("two",)) is None
    keep(made, "train", ("two",), step)
    assert kept(made, "train", ("two",)) is step
    assert kept(made, "train", ("four",)) is None
    made.layers[0].trainable = False  # counts after `compile`, as with Keras
    assert kept(made, "train", ("two",)) is step
    made.layers[0].quantize("int8")
    assert kept(made, "train", ("two",)) is None
    keep(made, "train", ("two",), step)
    made.compile(made.optimizer, made.loss)
    assert kept(made, "train", ("two",)) is None


def test_saving_and_copying_know_nothing_of_it(tmp_path):
    made = model()
    keep(made, "train", ("two",), lambda: None)  # which cannot be pickled
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for other in (loaded, copy.deepcopy(made), keras.models.clone_model(made)):
        assert kept(other, "train", ("two",)) is None
        assert other(np.ones([1, 2])).shape == (1, 1)


def test_each_kind_has_its_own_and_few_of_them():
    """A loop that trains, evaluates and predicts would trace all anew in every turn."""
    made = model()
    for kind in ("train", "test", "predict"):
        for how in "abcde":
            keep(made, kind, (how,), f"{kind} {how}")
    assert [kept(made, "train", (how,)) for how in "abcde"] == [None] * 4 + ["train e"]
    assert [kept(made, "test", (how,)) for how in "ab"] == [None, "test b"]
    keep(made, "test", ("b",), "test b")  # used once more
    keep(made, "test", ("f",), "test f")
    assert [kept(made, "test", (how,)) for how in "bcde"] == ["test b", None, "test d", "test e"]
    assert kept(made, "predict", ("e",)) == "predict e"
    made.compile("sgd", "mse")
    keep(made, "predict", ("new",), "new")
    assert [kept(made, "predict", (how,)) for how in ("e", "new")] == [None, "new"]


def test_a_model_that_is_not_compiled_keeps_how_it_predicts():
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    keep(made, "predict", ("two",), "step")
    assert kept(made, "predict", ("two",)) == "step"
    made.compile("sgd", "mse")
    assert kept(made, "predict", ("two",)) is None
