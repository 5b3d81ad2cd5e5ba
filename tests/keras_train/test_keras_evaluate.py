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


class Makes(keras.Model):
    def make_predict_function(self, force=False):
        return None


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
    with pytest.raises(cn.InvalidArgument, match=r"prove='maybe'(.|\n)*where nothing is cut"):
        cn.predict(flat, X, devices=2, verbose=0, prove="maybe", split=[0], per_device=True)
    with pytest.raises(cn.InvalidArgument, match="a make_predict_function of its own"):
        cn.predict(Makes(), X, devices=2)


def test_losses_of_outputs_are_those_of_keras_where_batches_differ_in_size():
    rng = np.random.default_rng(0)
    given = keras.Input([4])
    made = keras.Model(given, {name: keras.layers.Dense(1, name=name)(given) for name in "ab"})
    made.compile("sgd", {"a": "mse", "b": "mae"})
    x, y = rng.normal(size=(13, 4)), {name: rng.normal(size=(13, 1)) for name in "ab"}
    options = {"batch_size": 10, "verbose": 0, "return_dict": True}
    expected, found = made.evaluate(x, y, **options), cn.evaluate(made, x, y, devices=2, **options)
    assert found == pytest.approx(expected, rel=1e-5)


class Keeps(keras.layers.Layer):
    """Changes states whenever it is called, and draws numbers."""

    def __init__(self):
        super().__init__()
        self.seen, self.calls = keras.metrics.Mean("seen"), self.add_weight(shape=(), initializer="zeros")
        self.noise = keras.layers.Dropout(0.5)

    def call(self, x):
        self.add_loss(ops.mean(x**2))
        self.calls.assign_add(1.0)
        self.seen.update_state(ops.mean(x))
        return x + 1e-20 * self.noise(ops.ones_like(x), training=True)


def test_what_layers_keep_in_evaluation_is_kept():
    found = []
    for evaluate, predict in (
        (keras.Model.evaluate, keras.Model.predict),
        (partial(cn.evaluate, devices=4), partial(cn.predict, devices=4)),
    ):
        made = model(Keeps())
        logs = evaluate(made, X, Y, batch_size=10, verbose=0, return_dict=True)
        predict(made, X, batch_size=10, verbose=0)
        found.append([logs["seen"], logs["loss"], made.layers[1].calls.numpy()])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert found[0][2] == 6


class Unsure(keras.layers.Dropout):
    def call(self, x, training=False):
        return super().call(x, training=True)


def test_predictions_with_random_numbers_differ_from_call_to_call():
    """As where dropout in prediction tells how sure a model is; devices draw numbers of their own."""
    made = keras.Sequential([keras.Input([6]), Unsure(0.5)])
    same = np.ones([8, 6], "float32")
    first, second = (cn.predict(made, same, devices=2, verbose=0) for _ in range(2))
    assert (first != second).any()
    assert (first[:4] != first[4:]).any()


class Counted(keras.layers.Layer):
    """Counts how often Python comes by: traces."""

    count = 0

    def call(self, x):
        Counted.count += 1
        return x


def test_a_second_call_traces_nothing_and_leaves_keras_its_own_traces():
    """As in sampling callbacks, and in loops that predict and train in turns."""
    made = model(Counted())

    def all_of_it(start):
        x, y = X[start : start + 8], Y[start : start + 8]
        cn.evaluate(made, x, y, 8, devices=2, verbose=0)
        cn.predict(made, x, 8, devices=2, verbose=0)
        cn.train_on_batch(made, x, y, devices=2, prove="warn")
        cn.test_on_batch(made, x, y, devices=2)
        made.predict(x, verbose=0)
        made.evaluate(x, y, verbose=0)

    all_of_it(0)  # makes metrics, after which Keras's steps and those of evaluations are others
    all_of_it(0)
    before = Counted.count
    all_of_it(8)
    cn.fit(made, X[:8], Y[:8], devices=2, prove="warn", verbose=0)
    assert Counted.count == before


class Looks(keras.callbacks.Callback):
    """Evaluates and predicts while the model is trained, with other devices than the training has."""

    def __init__(self, evaluate, predict):
        super().__init__()
        self.evaluate, self.predict, self.seen, self.validated = evaluate, predict, [], None

    def on_test_begin(self, logs=None):
        self.validated = type(self.model.test_function).__name__

    def on_train_batch_end(self, batch, logs=None):
        self.seen += [*self.evaluate(self.model, X[:12], Y[:12], batch_size=12, verbose=0)]
        self.seen += [*self.predict(self.model, X[:12], batch_size=12, verbose=0)[0]]

    def on_epoch_end(self, epoch, logs=None):
        self.seen += [logs["loss"], logs["val_loss"]]


def test_a_callback_may_evaluate_and_predict_and_validation_stays_on_all_devices():
    found = []
    for fit, evaluate, predict in (
        (keras.Model.fit, keras.Model.evaluate, keras.Model.predict),
        (partial(cn.fit, devices=3), partial(cn.evaluate, devices=2), partial(cn.predict, devices=4)),
    ):
        made, looks = model(), Looks(evaluate, predict)
        given = X[:12], Y[:12]
        fit(made, *given, 12, 2, shuffle=False, verbose=0, validation_data=given, callbacks=[looks])
        found.append(looks.seen)
    assert (looks.validated, made.test_function) == ("ScoreStep", None)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_arguments_come_in_the_places_that_keras_has_for_them():
    heard, made = [], model()
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: heard.append(batch),
        on_test_batch_end=lambda batch, logs: heard.append(batch),
        on_predict_batch_end=lambda batch, logs: heard.append(batch),
    )
    options = {"devices": 2, "verbose": 0, "callbacks": [count], "prove": False}
    cn.fit(made, X[:8], Y[:8], 4, 2, **options)
    cn.evaluate(made, X[:8], Y[:8], 8, **options)
    cn.predict(made, X[:6], 2, **options)
    assert heard == [0, 1, 0, 1, 0, 0, 1, 2]
