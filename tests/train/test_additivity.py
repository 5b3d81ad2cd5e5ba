"""What `cn.fit` refuses before anything is trained: losses that cannot be computed by slices."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
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


REFUSED = {
    "a loss that sums": (
        lambda: model(loss=lambda y, p: ops.sum((y - p) ** 2)),
        "loss=.*sum over the examples",
    ),
    "root mean square": (lambda: model(loss=rms), "loss='rms'.*is not the mean of the losses of slices"),
    "some left out": (lambda: model(loss=ignoring), r"loss='ignoring'.*cn\.Weighted"),
    "a vector": (lambda: model(kind=Vector), r"compute_loss='Vector'.*shape \(.*,\)"),
    "an own sum": (lambda: model(kind=Sum), "compute_loss='Sum'.*sum over the examples"),
    "an own sum with noise": (lambda: model(kind=NoisySum), "compute_loss='NoisySum'.*sum over the examples"),
    "add_loss of a sum": (lambda: model(Adds(ops.sum)), "add_loss='adds'.*sum over the examples"),
    "add_loss by example": (
        lambda: model(Adds(lambda x: ops.mean(x**2, axis=-1)), keras.layers.BatchNormalization()),
        "add_loss='adds'.*sum over the examples",
    ),
    "add_loss of a root": (
        lambda: model(keras.layers.Dropout(0.5), Adds(lambda x: ops.sqrt(ops.mean(x**2)))),
        "add_loss='adds'.*is not the mean",
    ),
    "add_loss in training": (
        lambda: model(Adds(lambda x: ops.sum(x**2), only_in_training=True)),
        "add_loss='adds'.*sum over the examples",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_mean_over_slices_is_refused_before_anything_changes(name):
    made, says = REFUSED[name]
    made = made()
    before = [v.numpy() for v in (*made.variables, *made.optimizer.variables)]
    with pytest.raises(cn.InvalidArgument, match=says):
        cn.fit(made, X, Y, devices=3, batch_size=16, verbose=0)
    for one, other in zip((*made.variables, *made.optimizer.variables), before, strict=False):
        np.testing.assert_array_equal(one.numpy(), other, err_msg=one.path)


def test_ignore_class_is_refused_by_name():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    with pytest.raises(cn.InvalidArgument, match=r"ignore_class=-1.*cn\.Weighted"):
        cn.fit(model(loss=loss, metrics=()), X, RNG.integers(-1, 2, 16), devices=2)


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


@pytest.mark.parametrize(
    "name",
    [
        "dropout and batch norm",
        "add_loss of a sample",
        *long(*(name for name in RIGHT if name not in ("dropout and batch norm", "add_loss of a sample"))),
    ],
)
def test_what_is_right_is_not_refused(name):
    made = model(*RIGHT[name])
    weight = RNG.uniform(size=15)
    history = cn.fit(made, X[:15], Y[:15], devices=4, sample_weight=weight, batch_size=13, verbose=0).history
    assert np.isfinite(history["loss"][0])


def test_noise_in_the_loss_is_not_refused():
    cn.fit(model(kind=Noisy), X, Y, devices=4, verbose=0)


def test_looking_leaves_the_training_as_it_is(monkeypatch):
    """States, metrics and the numbers that are drawn are those without a look."""
    from colonnade.run.train import keras_fit

    both = []
    for looks in (True, False):
        if not looks:
            monkeypatch.setattr(keras_fit._Step, "_examine", lambda *_: None)
        made = model(keras.layers.Dropout(0.5, seed=1), keras.layers.BatchNormalization(), Adds(ops.mean))
        history = cn.fit(made, X, Y, devices=2, batch_size=8, shuffle=False, verbose=0).history
        both.append([*history.values(), *(v.numpy() for v in made.variables)])
    for a, b in zip(*both, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", [*long("mixed_float16"), "mixed_bfloat16"])
def test_half_precision_is_not_refused(policy):
    keras.config.set_dtype_policy(policy)
    try:
        added = Adds(lambda x: ops.cast(ops.mean(x**2), "float32"))  # a mean that is computed in halves
        made = model(keras.layers.Dense(64, activation="relu"), added)
        cn.fit(made, X, Y, devices=3, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
