import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.batch.split import Broadcast
from colonnade.run.keras_steps.split_inputs import SplitInputs

RNG = np.random.default_rng(0)
ITEMS, TABLE, TARGET = RNG.integers(0, 6, (20, 3)), RNG.normal(size=(6, 4)), RNG.normal(size=(20, 1))


class Looks(keras.Model):
    """Looks items up in a table that comes with the batch, and has rows of its own number."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, dtype="float64")

    def call(self, inputs):
        items, table = inputs.values() if isinstance(inputs, dict) else inputs
        return self.dense(keras.ops.mean(keras.ops.take(table, items, axis=0), axis=1))


class LooksItself(Looks):
    def train_step(self, data):
        return super().train_step(data)


def data(listed):
    """Batches of 10 items, each with the whole table."""

    def element(i):
        x = (tf.constant(ITEMS)[i : i + 10], tf.constant(TABLE))
        return (
            x if listed else dict(zip(("items", "table"), x, strict=True)),
            tf.constant(TARGET)[i : i + 10],
        )

    return tf.data.Dataset.from_tensor_slices(np.arange(0, 20, 10)).map(element)


@pytest.mark.parametrize(("kind", "listed"), [(Looks, False), *long((Looks, True), (LooksItself, False))])
def test_other_inputs_go_whole_to_every_device(kind, listed):
    found = []
    for devices in (None, 3):
        keras.utils.set_random_seed(0)
        model = kind()
        model.compile("sgd", "mse")
        options = {"epochs": 2, "shuffle": False, "verbose": 0, "validation_data": data(listed)}
        if devices is None:
            history = model.fit(data(listed), **options)
        else:
            split = [0] if listed else ["items"]
            history = cn.fit(model, data(listed), devices=devices, split=split, **options)
            scores = cn.evaluate(model, data(listed), devices=devices, split=split, verbose=0)
            np.testing.assert_allclose(scores, model.evaluate(data(listed), verbose=0), rtol=1e-6)
        found.append([*history.history.values(), *model.get_weights()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_inputs_are_marked():
    marked = SplitInputs(("a",)).marked({"a": 1, "b": 2})
    assert marked["a"] == 1
    assert isinstance(marked["b"], Broadcast)
    assert SplitInputs().marked([1, 2]) == [1, 2]
    with pytest.raises(cn.InvalidArgument, match="none of the inputs, which are a, b"):
        SplitInputs(("c",)).marked({"a": 1, "b": 2})
    with pytest.raises(cn.InvalidArgument, match="names inputs of a model that has one"):
        SplitInputs(("c",)).marked(np.ones(3))
    for split in ("items", [], [1.5]):
        with pytest.raises(cn.InvalidArgument, match="keys, or the places"):
            cn.fit(Looks(), np.ones(3), split=split)
