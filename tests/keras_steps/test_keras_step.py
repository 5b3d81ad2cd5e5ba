"""Losses of all kinds, exact by slices or refused before anything is trained; tolerances of float32 sums."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6)).astype("float32")
Y = RNG.normal(size=(16, 2)).astype("float32")


class Adds(keras.layers.Layer):
    """Adds a loss in its call."""

    def __init__(self, loss, only_in_training=False):
        super().__init__(name="adds")
        self.loss, self.only = loss, only_in_training

    def call(self, x, training=False):
        if training or not self.only:
            self.add_loss(self.loss(x))
        return x


def model(*layers, loss="mse", metrics=("mae",), kind=keras.Sequential, **options):
    keras.utils.set_random_seed(0)
    made = kind(
        [keras.Input([6]), keras.layers.Dense(4, kernel_regularizer="l2"), *layers, keras.layers.Dense(2)]
    )
    made.compile(keras.optimizers.SGD(0.1), loss, metrics=list(metrics), **options)
    return made


class Vector(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean((y - y_pred) ** 2, axis=-1)


class Sum(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.sum((y - y_pred) ** 2) + sum(self.losses)


class Noisy(keras.Sequential):
    """As in diffusion: the loss draws random numbers."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        noise = tf.random.normal(tf.shape(y), stddev=0.1)
        errors = ops.mean((y - y_pred + noise) ** 2, axis=-1)
        return ops.mean(errors) + sum(self.losses)


class NoisySum(Noisy):
    def compute_loss(self, *arguments, **options):
        rows = ops.shape(arguments[1])[0]
        return super().compute_loss(*arguments, **options) * ops.cast(rows, "float32")


def squares(y, prediction):
    return ops.sum((y - prediction) ** 2)


def rms(y, prediction):
    return ops.sqrt(ops.mean((y - prediction) ** 2))


def ignoring(y, prediction):
    counted = ops.cast(y[:, :1] > 0, "float32")
    return ops.sum(counted * (y - prediction) ** 2) / ops.sum(counted)


def pairs(y, prediction):
    """Compares every example with every other."""
    return ops.mean((prediction @ ops.transpose(prediction) - y @ ops.transpose(y)) ** 2)


def classes():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    return model(loss=loss, metrics=())


# Each is equal to Keras, which computes it for the whole batch.
EXACT = {
    "a loss that sums": lambda: model(loss=squares),
    "a reduction that sums": lambda: model(loss=keras.losses.MeanSquaredError(reduction="sum")),
    "a mean by weights": lambda: model(
        loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    ),
    "root mean square": lambda: model(loss=rms),
    "some left out": lambda: model(loss=ignoring),
    "dice": lambda: model(loss=keras.losses.Dice()),
    "compared with each other": lambda: model(loss=pairs),
    "an own sum": lambda: model(kind=Sum),
    "a loss for each example": lambda: model(kind=Vector),
    "add_loss of a sum": lambda: model(Adds(ops.sum)),
    "add_loss by example": lambda: model(Adds(lambda x: ops.mean(x**2, axis=-1))),
    "add_loss in training": lambda: model(Adds(lambda x: ops.sum(x**2), only_in_training=True)),
    "add_loss of a mean": lambda: model(Adds(lambda x: ops.mean(x**2))),
}


def trained(fit, made, **options):
    made.optimizer.learning_rate = 0.005
    weight = np.random.default_rng(1).uniform(0.5, 1.5, 16)
    history = fit(
        made, X, Y, sample_weight=weight, batch_size=11, epochs=2, shuffle=False, verbose=0, **options
    )
    return history.history, made.get_weights()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", kept(EXACT, "add_loss by example", "compared with each other", "an own sum"))
def test_losses_that_are_no_means_over_examples_are_those_of_keras(name):
    expected, weights = trained(keras.Model.fit, EXACT[name]())
    history, found = trained(cn.fit, EXACT[name](), devices=3)
    for a, b in zip(found, weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert history.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(history[key], expected[key], rtol=1e-5, err_msg=key)


IDS = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [3, 0, 0, 0], [1, 1, 1, 0], [2, 2, 2, 2], [1, 0, 0, 0]])


def masked():
    """A mask at the output, from a model inside a model."""
    keras.utils.set_random_seed(0)
    layers = keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.LSTM(2, return_sequences=True)
    made = keras.Sequential([keras.Sequential([keras.Input([4]), *layers]), keras.layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.5), "mse", metrics=["mae"])
    return made


@pytest.mark.long  # `keras_programs` has a mask at the output in `make test`
def test_masks_at_the_output_count_as_in_keras():
    target = np.random.default_rng(0).normal(size=(6, 4, 2))
    both = []
    for fit in (keras.Model.fit, partial(cn.fit, devices=4)):
        made = masked()
        history = fit(made, IDS, target, batch_size=6, epochs=2, shuffle=False, verbose=0).history
        both.append([*history.values(), *made.get_weights()])
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    with pytest.raises(cn.InvalidArgument, match="has a mask at its output"):
        cn.fit(masked(), IDS, target, devices=2, sync=cn.LocalSGD(2), verbose=0)


class Contracts(keras.layers.Layer):
    """As a recommender that meant to multiply example by example."""

    def __init__(self, only_in_training=False):
        super().__init__()
        self.only = only_in_training

    def call(self, x, training=False):
        return x + tf.tensordot(x, x, 2) if training or not self.only else x


REFUSED = {
    "add_loss of a root": (
        lambda: model(keras.layers.Dropout(0.5), Adds(lambda x: ops.sqrt(ops.mean(x**2)))),
        "add_loss='adds'.*is neither a mean nor a sum",
    ),
    "examples that influence each other in training": (
        lambda: model(Contracts(only_in_training=True)),
        "lets examples influence each other.*prediction differs",
    ),
    "examples that influence each other": (
        lambda: model(Contracts()),
        "lets examples influence each other.*prediction differs",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_equal_is_refused_before_anything_changes(name):
    made, says = REFUSED[name]
    made = made()
    before = [v.numpy() for v in (*made.variables, *made.optimizer.variables)]
    with pytest.raises(cn.InvalidArgument, match=says):
        cn.fit(made, X, Y, devices=3, batch_size=16, verbose=0)
    for one, other in zip((*made.variables, *made.optimizer.variables), before, strict=False):
        np.testing.assert_array_equal(one.numpy(), other, err_msg=one.path)


def test_a_warning_in_place_of_an_error():
    with pytest.warns(UserWarning, match="lets examples influence each other"):
        cn.fit(model(Contracts()), X, Y, devices=2, batch_size=16, verbose=0, prove="warn")
    cn.fit(model(Contracts()), X, Y, devices=2, batch_size=16, verbose=0, prove=False)
    with pytest.raises(cn.InvalidArgument, match="prove=1"):
        cn.fit(model(), X, Y, devices=2, prove=1)


def test_what_was_proved_is_said(capsys):
    cn.fit(model(), X, Y, devices=2, verbose=2)
    cn.fit(model(keras.layers.Dropout(0.5)), X, Y, devices=2, verbose=2)
    cn.fit(model(keras.layers.BatchNormalization()), X, Y, devices=2, verbose=2)
    said = [line for line in capsys.readouterr().out.splitlines() if "proved" in line]
    assert [line.partition(":")[0] for line in said] == [
        "proved on the first batch",
        "proved on the first batch, without the random numbers of training",
        "proved on the first batch, without the statistics of the slices of training",
    ]


def test_on_one_device_a_sum_is_exact():
    weights = []
    for fit in (lambda m, **a: m.fit(X, Y, **a), lambda m, **a: cn.fit(m, X, Y, devices=1, **a)):
        made = model(Adds(ops.sum), loss=keras.losses.MeanSquaredError(reduction="sum"))
        made.optimizer.learning_rate = 0.001
        weights.append((fit(made, verbose=0, shuffle=False, batch_size=8), made.get_weights()))
    (keras_history, expected), (history, found) = weights
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    np.testing.assert_allclose(history.history["loss"], keras_history.history["loss"], rtol=1e-6)


def sampled(x):
    return ops.mean((x + tf.random.normal(tf.shape(x))) ** 2)


RIGHT = {
    "dropout and batch norm": (keras.layers.Dropout(0.5), keras.layers.BatchNormalization()),
    "an activity regularizer": (keras.layers.Dense(4, activity_regularizer="l2"),),
    "add_loss of a mean behind batch norm": (
        keras.layers.BatchNormalization(),
        Adds(lambda x: ops.mean(x**2)),
    ),
    "add_loss behind dropout": (keras.layers.Dropout(0.5), Adds(lambda x: ops.mean(x**2))),
    "add_loss of a sample": (Adds(sampled),),
    "add_loss of weights": (Adds(lambda x: ops.convert_to_tensor(0.1)),),
    "synchronised batch norm": (keras.layers.BatchNormalization(synchronized=True),),
    "noise": (keras.layers.GaussianNoise(0.5),),
}


PROVED, WITHOUT = "proved on the first batch: ", "proved on the first batch, without the "
# What is said of each: the proof tells them apart by trying.
SAID = {
    "dropout and batch norm": f"{WITHOUT}random numbers of training",
    "an activity regularizer": PROVED,
    "add_loss of a mean behind batch norm": f"{WITHOUT}statistics of the slices of training",
    "add_loss behind dropout": f"{WITHOUT}random numbers of training",
    "add_loss of a sample": f"{WITHOUT}random numbers of training",
    "add_loss of weights": PROVED,
    "synchronised batch norm": PROVED,
    "noise": f"{WITHOUT}random numbers of training",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name",
    [
        "dropout and batch norm",
        "add_loss of a sample",
        *long(*(name for name in RIGHT if name not in ("dropout and batch norm", "add_loss of a sample"))),
    ],
)
def test_what_is_right_is_not_refused(name, capsys):
    made = model(*RIGHT[name])
    weight, before = RNG.uniform(size=15), made.get_weights()
    options = {"devices": 4, "batch_size": 13, "shuffle": False, "verbose": 2}
    history = cn.fit(made, X[:15], Y[:15], sample_weight=weight, **options).history
    assert np.isfinite(history["loss"][0])
    assert any(not np.array_equal(a, b) for a, b in zip(made.get_weights(), before, strict=True))
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "proved" in line]
    assert said.startswith(SAID[name]), said


@pytest.mark.long
def test_noise_in_the_loss_is_not_refused(capsys):
    made = model(kind=Noisy)
    history = cn.fit(made, X, Y, devices=4, shuffle=False, verbose=2).history
    assert "proved on the first batch, without the random numbers" in capsys.readouterr().out
    # The noise adds 0.01, give or take what 32 numbers do to that.
    expected = model().evaluate(X, Y, verbose=0)[0] + 0.01
    np.testing.assert_allclose(history["loss"], [expected], atol=0.2 * expected)


@pytest.mark.long
def test_looking_leaves_the_training_as_it_is():
    """States, metrics and the numbers that are drawn are those without a look."""
    both = []
    for looks in (True, False):
        made = model(keras.layers.Dropout(0.5, seed=1), keras.layers.BatchNormalization(), Adds(ops.mean))
        history = cn.fit(made, X, Y, devices=2, batch_size=8, shuffle=False, verbose=0, prove=looks).history
        both.append([*history.values(), *(v.numpy() for v in made.variables)])
    for a, b in zip(*both, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", [*long("mixed_float16"), "mixed_bfloat16"])
def test_half_precision_is_not_refused(policy, capsys):
    keras.config.set_dtype_policy(policy)
    try:
        losses = []
        for devices in (1, 3):
            added = Adds(lambda x: ops.cast(ops.mean(x**2), "float32"))  # a mean that is computed in halves
            made = model(keras.layers.Dense(64, activation="relu"), added)
            losses += cn.fit(made, X, Y, devices=devices, shuffle=False, verbose=2).history["loss"]
    finally:
        keras.config.set_dtype_policy("float32")
    assert "proved on the first batch: largest difference" in capsys.readouterr().out
    # One step of bfloat16 is 0.8 percent, and a batch is one step of training.
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.01)


def test_freezing_counts_after_compile_as_with_keras():
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 2})):
        made = model()
        options = {"batch_size": 8, "shuffle": False, "verbose": 0, **more}
        for trainable in (False, True):
            made.layers[0].trainable = trainable
            fit(made, X, Y, **options)  # the second goes on with what the first has made
        both.append(made.get_weights())
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
