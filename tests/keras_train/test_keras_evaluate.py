"""`cn.evaluate`, `cn.predict` and validation in `cn.fit` against Keras; tolerances of float32 sums."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 6)).astype("float32")
Y = RNG.normal(size=(23, 2)).astype("float32")
WEIGHT = RNG.uniform(size=23)


class Adds(keras.layers.Layer):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


def model(*layers, loss="mse", **options):
    keras.utils.set_random_seed(0)
    first = keras.layers.Dense(4, kernel_regularizer="l2")
    made = keras.Sequential([keras.Input([6]), first, *layers, keras.layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.01), loss, metrics=["mae", keras.metrics.R2Score()], **options)
    return made


def rms(y, prediction):
    return ops.sqrt(ops.mean((y - prediction) ** 2))


@pytest.mark.parametrize(
    "layers",
    [
        (keras.layers.Dropout(0.5), keras.layers.BatchNormalization()),
        (Adds(ops.sum), Adds(lambda x: ops.mean(x**2)), Adds(lambda x: ops.mean(x**2, axis=-1))),
    ],
    ids=["dropout and batch norm", "added sums and means"],
)
def test_evaluate_is_that_of_keras_with_a_last_batch_smaller_than_the_devices(layers):
    made = model(*layers, loss=rms)
    arguments = {"sample_weight": WEIGHT, "batch_size": 10, "verbose": 0, "return_dict": True}
    expected = made.evaluate(X, Y, **arguments)
    found = cn.evaluate(made, X, Y, devices=4, **arguments)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)
    assert "loss" in made.evaluate(X, Y, verbose=0, return_dict=True)  # the model is Keras's again


def two_outputs():
    given = keras.Input([6])
    return keras.Model(given, {"a": keras.layers.Dense(2)(given), "b": keras.layers.Dense(1)(given)})


@pytest.mark.parametrize("steps", [1, 2])
def test_predictions_come_in_order_every_example_once(steps):
    made = two_outputs()
    made.compile("sgd", "mse", steps_per_execution=steps)
    expected = made.predict(X, batch_size=10, verbose=0)
    found = cn.predict(made, X, devices=4, batch_size=10, verbose=0)
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(9)
    np.testing.assert_allclose(cn.predict(made, dataset, devices=2, verbose=0)["a"], expected["a"], rtol=1e-5)


class OwnSteps(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = keras.layers.Dense(2)
        self.error = keras.metrics.Mean(name="error")

    @property
    def metrics(self):
        return [self.error]

    def call(self, x):
        return self.net(x)

    def test_step(self, data):
        x, y = data
        self.error.update_state(ops.mean(ops.abs(self(x) - y)))
        return {"error": self.error.result()}

    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return ops.argmax(self(x), axis=-1)


def test_steps_of_their_own():
    keras.utils.set_random_seed(0)
    made = OwnSteps()
    made.compile()
    expected = made.evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)
    found = cn.evaluate(made, X, Y, devices=3, batch_size=10, verbose=0, return_dict=True)
    assert found["error"] == pytest.approx(expected["error"], rel=1e-6)
    np.testing.assert_array_equal(
        cn.predict(made, X, devices=3, batch_size=10, verbose=0), made.predict(X, batch_size=10, verbose=0)
    )


def test_validation_inside_fit_runs_on_all_devices_and_is_that_of_keras():
    both = []
    for fit in (keras.Model.fit, partial(cn.fit, devices=3)):
        made = model(loss=rms)
        options = {"validation_data": (X[:11], Y[:11], WEIGHT[:11]), "validation_batch_size": 7}
        both.append(fit(made, X, Y, epochs=2, shuffle=False, batch_size=12, verbose=0, **options).history)
    assert both[0].keys() == both[1].keys()
    assert any(name.startswith("val_") for name in both[0])
    for name in both[0]:
        np.testing.assert_allclose(both[1][name], both[0][name], rtol=1e-5, err_msg=name)


def test_mistakes():
    with pytest.raises(cn.InvalidArgument, match="is not compiled"):
        cn.evaluate(two_outputs(), X, Y, devices=2)
    with pytest.raises(cn.InvalidArgument, match="must be a Keras model"):
        cn.predict(lambda x: x, X, devices=2)
    with pytest.raises(cn.InvalidArgument, match="run_eagerly"):
        cn.evaluate(model(run_eagerly=True), X, Y, devices=2)
    flat = keras.Sequential([keras.Input([6]), keras.layers.Lambda(ops.mean)])
    with pytest.raises(cn.InvalidArgument, match="is a number for a slice"):
        cn.predict(flat, X, devices=2, verbose=0)


def test_losses_of_outputs_are_those_of_keras_where_batches_differ_in_size():
    rng = np.random.default_rng(0)
    given = keras.Input([4])
    made = keras.Model(given, {name: keras.layers.Dense(1, name=name)(given) for name in "ab"})
    made.compile("sgd", {"a": "mse", "b": "mae"})
    x, y = rng.normal(size=(13, 4)), {name: rng.normal(size=(13, 1)) for name in "ab"}
    options = {"batch_size": 10, "verbose": 0, "return_dict": True}
    expected, found = made.evaluate(x, y, **options), cn.evaluate(made, x, y, devices=2, **options)
    assert found == pytest.approx(expected, rel=1e-5)
