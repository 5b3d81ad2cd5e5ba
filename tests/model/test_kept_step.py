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
    assert kept(made, ("two",)) is None
    keep(made, ("two",), step)
    assert kept(made, ("two",)) is step
    assert kept(made, ("four",)) is None
    made.layers[0].trainable = False
    assert kept(made, ("two",)) is None
    made.layers[0].trainable = True
    assert kept(made, ("two",)) is step
    made.compile(made.optimizer, made.loss)
    assert kept(made, ("two",)) is None


def test_saving_and_copying_know_nothing_of_it(tmp_path):
    made = model()
    keep(made, ("two",), lambda: None)  # which cannot be pickled
    made.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for other in (loaded, copy.deepcopy(made), keras.models.clone_model(made)):
        assert kept(other, ("two",)) is None
        assert other(np.ones([1, 2])).shape == (1, 1)
