"""What Keras would train on, and what our dataset gives, batch by batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept

from colonnade.run.keras_train.fit_dataset import FitDataset

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(11, 3)), RNG.integers(0, 3, 11)


class Keeps(keras.Model):
    """Keeps the batches that Keras gives to it."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def train_step(self, data):
        self.batches.append(tf.nest.map_structure(lambda t: t.numpy(), data))
        return {"loss": 0.0}


def of_keras(x, y, **options):
    made = Keeps()
    made.compile(run_eagerly=True)
    made.fit(x, y, verbose=0, **options)
    return made.batches


def ours(x, y, **options):
    return [
        tf.nest.map_structure(lambda t: t.numpy(), data) for (data,) in FitDataset.of(x, y, options).batches
    ]


CASES = {
    "floats of 64 bits": (X, Y, {}),
    "without targets": (X, None, {}),
    "dict and weights": ({"a": X, "b": X[:, 0]}, Y, {"sample_weight": X[:, 1]}),
    "list of inputs": ([X, X + 1], [Y, Y], {}),
    "a batch size": (X, Y, {"batch_size": 4}),
    "classes": (X, Y, {"class_weight": {0: 2.0, 1: 0.5}, "batch_size": 4}),
    "classes in floats": (X, Y[:, None].astype("float64"), {"class_weight": {1: 3.0}}),
    "classes, one hot": (X, np.eye(3)[Y], {"class_weight": {0: 2.0, 2: 0.5}}),
    "steps": (X, Y, {"steps_per_epoch": 3}),
    "split": (X, Y, {"validation_split": 0.3, "batch_size": 2}),
    "dataset": (tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), None, {}),
    "dataset of x": (tf.data.Dataset.from_tensor_slices(X).batch(4), None, {}),
    "dataset of dicts": (tf.data.Dataset.from_tensor_slices({"a": X}).batch(4), None, {}),
    "dataset, classes": (
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(4),
        None,
        {"class_weight": {0: 2.0, 1: 0.5, 2: 1.5}},
    ),
}


@pytest.mark.filterwarnings("ignore:`shuffle=True`")
@pytest.mark.parametrize("name", kept(CASES, "dict and weights", "classes", "split", "dataset, classes"))
def test_batches_are_those_of_keras(name):
    x, y, options = CASES[name]
    if "split" in name:
        options = {**options, "validation_data": None}
        kept = 7
        expected = of_keras(X[:kept], Y[:kept], shuffle=False, batch_size=2)
        np.testing.assert_array_equal(
            FitDataset.of(x, y, dict(options)).options["validation_data"][0], X[kept:]
        )
    else:
        expected = of_keras(x, y, shuffle=False, **options)
    found = ours(x, y, shuffle=False, **options)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        tf.nest.assert_same_structure(one, other)
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def test_arrays_are_shuffled_anew_in_every_pass():
    data = FitDataset.of(np.arange(40), None, {"batch_size": 7}).batches
    passes = [np.concatenate([one for (one,) in data]).tolist() for _ in range(2)]
    assert passes[0] != passes[1] != list(range(40))
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(40))


def test_sparse_rows_are_cut_and_gathered_as_rows_are():
    """Zeros that are said stay, and rows without a value; the order of the values is no matter."""
    places = [[4, 1], [0, 2], [0, 0], [5, 1], [2, 2], [1, 0]]
    x = tf.SparseTensor(places, [1.0, 2.0, 3.0, 4.0, 0.0, 5.0], [6, 3])
    rows, y = tf.sparse.to_dense(tf.sparse.reorder(x)).numpy(), np.arange(6)
    made = FitDataset.of(x, y, {"validation_split": 0.34, "batch_size": 2})
    assert made.batches.element_spec[0][0].shape.as_list() == [None, 3]
    held, of_held = made.options["validation_data"][:2]
    np.testing.assert_array_equal(tf.sparse.to_dense(held), rows[3:])
    np.testing.assert_array_equal(of_held, y[3:])
    found = [batch for (batch,) in made.batches]
    order = np.concatenate([which for _, which in found])
    assert sorted(order) == [0, 1, 2]
    for part, which in found:
        np.testing.assert_array_equal(tf.sparse.to_dense(part), rows[which])
    assert sum(part.values.shape[0] for part, _ in found) == 4
