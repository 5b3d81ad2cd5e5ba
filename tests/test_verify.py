import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn

X = tf.constant(np.random.default_rng(0).normal(size=(13, 6)).astype("float32"))


def per_example(x):
    return tf.nn.elu(x @ WEIGHTS)


WEIGHTS = tf.Variable(np.random.default_rng(1).normal(size=(6, 3)).astype("float32"), name="weights")


def test_equal():
    report = cn.verify(per_example, X, devices=4)
    assert report
    assert {row.batch for row in report.rows} == {12, 11, 3}
    assert {row.leaf for row in report.rows} == {"output", "gradient of x", "gradient of weights:0"}
    assert all(row.difference <= row.tolerance < 1e-3 for row in report.rows)
    assert "4 devices and one: equal." in str(report)


@tf.custom_gradient
def smaller_gradient(x):
    """The identity, with a gradient that depends on the size of the batch."""
    return tf.identity(x), lambda dy: dy / tf.cast(tf.shape(x)[0], tf.float32)


@pytest.mark.parametrize(
    ("fn", "cause"),
    [
        (lambda x: tf.reduce_mean(x @ WEIGHTS), "mean"),
        *long((lambda x: tf.reduce_sum(x @ WEIGHTS), "sum")),
        *long((lambda x: tf.reduce_sum(x @ WEIGHTS, axis=0), "sum")),
        (lambda x: x - tf.reduce_mean(x, axis=0), "statistics"),
        *long((lambda x: x / tf.cast(tf.shape(x)[0], tf.float32), "size")),
        (lambda x: smaller_gradient(x @ WEIGHTS), "size"),
        (lambda x: x - x[0], "order"),
        *long((lambda x: tf.cumsum(x), "order")),
        (lambda x: x + tf.random.uniform(tf.shape(x)), "randomness"),
    ],
)
def test_causes(fn, cause):
    report = cn.verify(fn, X, devices=2)
    assert not report
    assert report.causes[0] == cause
    assert "parallel" not in report.causes
    assert f"NO: {cause}" in str(report)


@pytest.mark.parametrize(("fn", "join"), [(tf.reduce_mean, "mean"), *long((tf.reduce_sum, "sum"))])
def test_a_join_makes_it_equal(fn, join):
    assert cn.verify(lambda x: fn(x @ WEIGHTS), X, devices=3, join=join)


def test_unknown_join():
    with pytest.raises(cn.InvalidArgument, match="must be one of concat, mean, sum, stack"):
        cn.verify(per_example, X, devices=4, join="average")


@pytest.mark.parametrize(
    ("before", "rows"), [([], 4), *long(([keras.layers.Dense(4)], 13))], ids=["alone", "after a layer"]
)
def test_batch_norm_and_dropout_of_keras(before, rows):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([*before, keras.layers.BatchNormalization()])
    assert cn.verify(model, X[:rows], devices=3, training=False)
    values = [v.numpy() for v in model.variables]
    assert cn.verify(model, X[:rows], devices=3, training=True).causes[0] == "statistics"
    for v, value in zip(model.variables, values, strict=True):
        assert np.array_equal(v.numpy(), value)  # the moving averages were put back
    assert cn.verify(keras.layers.Dropout(0.5), X, devices=3, training=True).causes == ("randomness",)


def test_integers_and_strings_must_be_equal():
    assert cn.verify(
        lambda x, i: (tf.argmax(x, axis=1), tf.strings.as_string(i)), X, np.arange(13), devices=4
    )


def test_a_wrong_parallel_run_is_not_blamed_on_the_function(monkeypatch):
    from colonnade.run import parallel

    def mean_of_means(path, replicas, counts, *rest):
        return tf.add_n(list(replicas)) / len(replicas)

    monkeypatch.setattr(parallel, "join_leaf", mean_of_means)
    report = cn.verify(lambda x: tf.reduce_mean(x @ WEIGHTS), X[:11], devices=4, join="mean")
    assert set(report.causes) == {"parallel"}


def test_a_coarse_output_does_not_loosen_the_others():
    def f(x, y):
        return tf.cast(x, tf.bfloat16), y * 2.0

    tolerances = {row.leaf: row.tolerance for row in cn.verify(f, X, X, devices=2).rows}
    assert tolerances["output[0]"] > 0.1
    assert tolerances["gradient of x"] > 0.1
    assert tolerances["output[1]"] < 1e-4
    assert tolerances["gradient of y"] < 1e-4


@pytest.mark.long
def test_gradients_of_what_passes_whole_and_of_namesakes():
    one, other = (tf.Variable(2.0, name="w") for _ in range(2))
    report = cn.verify(lambda x, t: x * t * one + other, X, cn.broadcast(tf.constant(3.0)), devices=2)
    assert report
    leaves = {row.leaf for row in report.rows}
    assert {"gradient of t", "gradient of w:0", "gradient of w:0 #2"} <= leaves


def test_a_gradient_that_only_n_devices_have_is_a_difference(monkeypatch):
    from colonnade.run import verify

    real = verify._Experiment.evaluate

    def evaluate(self, target, rows, weights=None):
        extra = {"gradient of nothing": np.zeros(1)} if target is self.many else {}
        return real(self, target, rows, weights) | extra

    monkeypatch.setattr(verify._Experiment, "evaluate", evaluate)
    report = cn.verify(per_example, X, devices=2)
    assert {row.leaf for row in report.rows if not row.equal} == {"gradient of nothing"}
