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


@tf.custom_gradient
def gradient_of_all(x):
    """The identity, with a gradient in which examples influence each other by what is asked of them."""
    return tf.identity(x), lambda dy: dy + 1e-3 * tf.reduce_mean(dy, axis=0)


@tf.custom_gradient
def gradient_of_first(x):
    return tf.identity(x), lambda dy: dy + 1e-4 * dy[:1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fn", "cause"),
    [
        (lambda x: tf.reduce_mean(x @ WEIGHTS), "mean"),
        *long((lambda x: tf.reduce_sum(x @ WEIGHTS), "sum")),
        *long((lambda x: tf.reduce_sum(x @ WEIGHTS, axis=0), "sum")),
        (lambda x: x - tf.reduce_mean(x, axis=0), "statistics"),
        *long((lambda x: x / tf.cast(tf.shape(x)[0], tf.float32), "size")),
        (lambda x: smaller_gradient(x @ WEIGHTS), "size"),
        (lambda x: gradient_of_all(x @ WEIGHTS), "statistics"),
        *long((lambda x: gradient_of_first(x @ WEIGHTS), "order")),
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
    from colonnade.run.parallel import parallel

    def mean_of_means(path, replicas, counts, *rest):
        return tf.add_n(list(replicas)) / len(replicas)

    monkeypatch.setattr(parallel, "join_leaf", mean_of_means)
    report = cn.verify(lambda x: tf.reduce_mean(x @ WEIGHTS), X[:11], devices=4, join="mean")
    assert set(report.causes) == {"parallel"}


@pytest.mark.long
def test_gradients_of_what_passes_whole_and_of_namesakes():
    one, other = (tf.Variable(2.0, name="w") for _ in range(2))
    report = cn.verify(lambda x, t: x * t * one + other, X, cn.broadcast(tf.constant(3.0)), devices=2)
    assert report
    leaves = {row.leaf for row in report.rows}
    assert {"gradient of t", "gradient of w:0", "gradient of w:0 #2"} <= leaves


def test_a_gradient_that_only_n_devices_have_is_a_difference(monkeypatch):
    from colonnade.run.parallel import verify

    real = verify._Experiment.evaluate

    def evaluate(self, target, rows, weights=None):
        extra = {"gradient of nothing": np.zeros(1)} if target is self.many else {}
        return real(self, target, rows, weights) | extra

    monkeypatch.setattr(verify._Experiment, "evaluate", evaluate)
    report = cn.verify(per_example, X, devices=2)
    assert {row.leaf for row in report.rows if not row.equal} == {"gradient of nothing"}


def for_few(x):
    """3e-6 for batches that are smaller than the whole."""
    return 3e-6 * tf.cast(tf.shape(x)[0] < 10, tf.float32)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + for_few(x),
        *long(lambda x: tf.tanh(x @ WEIGHTS) + for_few(x), lambda x: x**2 * (1 + for_few(x))),
    ],
)
def test_a_difference_in_the_last_digits_is_one(fn):
    report = cn.verify(fn, X, devices=2)
    assert report.causes[0] == "size"
    assert {row.batch for row in report.rows if not row.equal and row.leaf == "output"} >= {12, 11}


@pytest.mark.parametrize(
    "layers",
    [
        [keras.layers.Conv2D(8, 3, activation="relu"), keras.layers.Flatten()],
        *long([keras.layers.Reshape([36, 3]), keras.layers.LSTM(16)]),
        *long([keras.layers.Conv2D(8, 3), keras.layers.LayerNormalization(), keras.layers.Flatten()]),
    ],
    ids=["convolution", "recurrent", "normalised"],
)
def test_rounding_is_none(layers):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(2).normal(size=(13, 6, 6, 3)).astype("float32")
    model = keras.Sequential([keras.Input([6, 6, 3]), *layers, keras.layers.Dense(3)])
    assert cn.verify(model, x, devices=4)


@pytest.mark.long
def test_the_rounding_of_a_sum_over_a_large_batch_is_none():
    bias = tf.Variable(tf.zeros([3]))
    assert cn.verify(lambda x: x[:, :3] + bias, tf.random.normal([4001, 6]), devices=4)


def test_groups_of_rows():
    """A function of pairs of rows takes even batches, and its slices must be even too."""
    pairs = tf.function(lambda x: tf.reduce_sum(tf.reshape(x, [-1, 2, 6]), axis=1))
    report = cn.verify(pairs, X, devices=2)  # slices of 6
    assert report
    assert report.left_out == (11, 1)
    assert "A batch of 11 was left out" in str(report)
    report = cn.verify(pairs, X, devices=4)  # slices of 3
    assert report.causes == ("groups",)
    np.testing.assert_allclose(cn.parallel(pairs, devices=2)(X[:8]), pairs(X[:8]), rtol=1e-6)


def test_a_function_that_takes_no_batch_is_not_called_equal():
    with pytest.raises(tf.errors.InvalidArgumentError, match="in op MatrixInverse"):
        cn.verify(tf.linalg.inv, tf.zeros([9, 2, 2]), devices=3)

    def of_nine(x):
        tf.debugging.assert_equal(tf.reduce_sum(x), 9.0)  # only a run shows it
        return 2 * x

    with pytest.raises(cn.InvalidArgument, match="is taken whole only"):
        cn.verify(of_nine, tf.ones([9]), devices=4)
