"""Loops by hand over batches, against Keras's own."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(30, 4)).astype("float32"), RNG.integers(0, 3, 30)


class Counted(keras.layers.Layer):
    """Counts how often Python comes by: traces."""

    count = 0

    def call(self, x):
        Counted.count += 1
        return x


def model(kind=keras.Sequential):
    keras.utils.set_random_seed(0)
    made = kind([keras.layers.Dense(5, "tanh"), Counted(), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return made


class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize("kind", [keras.Sequential, pytest.param(Own, marks=pytest.mark.long)])
def test_a_loop_by_hand_is_that_of_keras(kind):
    ours, theirs = model(kind), model(kind)
    weights, classes = RNG.uniform(size=10), {0: 2.0, 1: 0.5, 2: 1.0}
    for start, more in ((0, {}), (10, {"sample_weight": weights}), (20, {"class_weight": classes})):
        x, y = X[start : start + 10], Y[start : start + 10]
        for as_dict in (False, True):
            found = cn.train_on_batch(ours, x, y, devices=3, return_dict=as_dict, **more)
            expected = theirs.train_on_batch(x, y, return_dict=as_dict, **more)
            assert type(found) is type(expected)
            pairs = (found.values(), expected.values()) if as_dict else (found, expected)
            np.testing.assert_allclose(*map(list, pairs), rtol=1e-5)
        found, expected = cn.test_on_batch(ours, x, y, devices=3), theirs.test_on_batch(x, y)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.long
def test_a_second_call_traces_nothing_nor_does_a_fit_after_it():
    made = model()
    cn.train_on_batch(made, X[:10], Y[:10], devices=2)
    cn.test_on_batch(made, X[:10], Y[:10], devices=2)
    before = Counted.count
    cn.train_on_batch(made, X[10:20], Y[10:20], devices=2)
    cn.test_on_batch(made, X[10:20], Y[10:20], devices=2)
    # A batch of a dataset is of 64 bits in its targets, as the array was.
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10)
    cn.fit(made, data, validation_data=data, devices=2, shuffle=False, verbose=0)
    assert Counted.count == before
    assert int(made.optimizer.iterations) == 5
    assert made.train_function is None


def test_a_loop_with_any_options_traces_once_and_goes_on_where_it_was():
    """Local replicas are joined every second step: the step between must find them as they were."""
    ours, sync = model(), cn.LocalSGD(2)
    for start in (0, 10, 20):
        x, y = X[start : start + 10], Y[start : start + 10]
        if start == 20:
            before = Counted.count, vars(ours)["_colonnade_steps"][0].step
        cn.train_on_batch(ours, x, y, devices=2, sync=sync, variables="mirrored", prove="warn")
        cn.test_on_batch(ours, x, y, devices=2)
    assert (Counted.count, vars(ours)["_colonnade_steps"][0].step) == before


def test_tables_of_pandas_are_taken_as_keras_takes_them():
    pandas = pytest.importorskip("pandas")
    found = []
    for train, test in (
        (keras.Model.train_on_batch, keras.Model.test_on_batch),
        (partial(cn.train_on_batch, devices=2), partial(cn.test_on_batch, devices=2)),
    ):
        made = model()
        x, y = pandas.DataFrame(X[:10]), pandas.Series(Y[:10])
        found.append([*train(made, x, y), *test(made, x, y)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_mistakes_are_told():
    with pytest.raises(cn.InvalidArgument, match=r"train_on_batch\(\).*\n.*is not compiled"):
        cn.train_on_batch(keras.Sequential([keras.layers.Dense(1)]), X, devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"test_on_batch\(\).*\n.*must be a Keras model"):
        cn.test_on_batch("model", X, devices=2)
