"""Loss and metrics of whole batches from predictions of slices, where layers add to them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import colonnade as cn
from colonnade.run.keras_steps.forward import Forward

RNG = np.random.default_rng(0)
X = RNG.normal(size=(7, 4)).astype("float32")
Y = RNG.normal(size=(7, 2)).astype("float32")


class Adds(keras.layers.Layer):
    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


class Measures(keras.layers.Layer):
    def __init__(self, value):
        super().__init__()
        self.value, self.seen = value, keras.metrics.Mean("seen")

    def call(self, x):
        self.seen.update_state(self.value(x))
        return x


def model(layer):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input([4]), layer, keras.layers.Dense(2)])
    made.compile("sgd", "mse", metrics=["mae"])
    return made


@pytest.mark.parametrize(
    "layer", [lambda: Adds(lambda x: ops.sum(x**2)), lambda: Measures(lambda x: ops.mean(x, axis=1))]
)
def test_a_second_batch_whose_slices_are_traced_already(layer):
    """Four rows and three, on four devices: no layer may keep what it has added to the first graph."""
    made = model(layer())
    options = {"batch_size": 4, "verbose": 0, "return_dict": True}
    found = cn.evaluate(made, X, Y, devices=4, **options)
    assert found == pytest.approx(made.evaluate(X, Y, **options), rel=1e-5)


HINGE = np.concatenate([-np.abs(X[:4]), np.abs(X[4:]), np.abs(X[:1])])  # of the first batch it is 0


@pytest.mark.parametrize(
    ("of", "batches"),
    [
        (lambda x: ops.sum(ops.relu(x)), [HINGE]),
        (lambda x: ops.sum(x**2), [X[:1], X[:4]]),
        (lambda x: ops.sum(ops.where(x > 1e6, x, 0.0)), [X[:4], 2e6 + X[:4]]),
    ],
    ids=["a hinge", "one example first", "nothing tells before"],
)
def test_what_layers_add_is_told_by_later_batches_or_by_none(of, batches):
    made = model(Adds(of))
    for x in batches:
        y, options = np.zeros((len(x), 2)), {"batch_size": 4, "verbose": 0, "return_dict": True}
        found = cn.evaluate(made, x, y, devices=2, **options)
        assert found == pytest.approx(made.evaluate(x, y, **options), rel=1e-4)


def test_what_has_no_room_on_one_device_is_told_by_the_halves_of_a_slice(monkeypatch):
    made, on_slices = model(Adds(lambda x: ops.sum(x**2))), Forward.on_slices
    ran = []

    def limited(forward, batch, counts, devices=None):
        results = on_slices(forward, batch, counts, devices)

        def run(given):
            ran.append(list(counts))
            if max(counts) > 2:
                raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
            return results(given)

        return run

    monkeypatch.setattr(Forward, "on_slices", limited)
    options = {"batch_size": 4, "verbose": 0, "return_dict": True}
    found = cn.evaluate(made, X[:4], Y[:4], devices=2, **options)
    assert found == pytest.approx(made.evaluate(X[:4], Y[:4], **options), rel=1e-4)
    assert [1, 1] in ran


def test_a_metric_of_a_vector_that_is_not_of_examples():
    made = model(Measures(lambda x: ops.mean(x, axis=0) * ops.arange(4.0)))
    options = {"batch_size": 7, "verbose": 0, "return_dict": True}
    found = cn.evaluate(made, X, Y, devices=2, **options)
    assert found == pytest.approx(made.evaluate(X, Y, **options), rel=1e-4)


def test_what_is_neither_a_mean_nor_a_sum_is_refused_by_name():
    with pytest.raises(
        cn.InvalidArgument, match="add_loss='adds': is given what is neither a mean nor a sum"
    ):
        cn.evaluate(model(named(Adds(ops.max), "adds")), X, Y, devices=2, verbose=0)
    with pytest.raises(cn.InvalidArgument, match="metric='0': is given what is neither"):
        cn.evaluate(model(Measures(ops.sum)), X, Y, devices=2, verbose=0)


def named(layer, name):
    layer.name = name
    return layer


def test_generators_may_leave_out_weights():
    made = model(Adds(ops.mean))
    expected = made.evaluate(X, Y, verbose=0)
    found = cn.evaluate(made, (batch for batch in [(X, Y, None)] * 2), steps=2, devices=2, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Sums(keras.Sequential):
    times = 1

    def test_step(self, data):
        x, y, *_ = data
        total = ops.sum((self(x) - y) ** 2)
        return {"total": total if self.times == 1 else self.times * total}


def test_a_step_of_its_own_may_tell_a_sum_over_the_examples():
    made = Sums([keras.Input([4]), keras.layers.Dense(2)])
    made.compile()
    expected = made.evaluate(X, Y, verbose=0, return_dict=True)
    found = cn.evaluate(made, X, Y, devices=2, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_step_of_its_own_that_tells_what_nobody_sees_to_be_a_sum_is_refused():
    made = Sums([keras.Input([4]), keras.layers.Dense(2)])
    made.times = 2
    made.compile()
    with pytest.raises(cn.InvalidArgument, match="test_step='Sums': tells what is no mean"):
        cn.evaluate(made, X, Y, devices=2, verbose=0)
    with pytest.raises(cn.InvalidArgument, match="test_step='Sums': tells what is no mean"):
        cn.test_on_batch(made, X, Y, devices=2)
    cn.evaluate(made, X, Y, devices=2, verbose=0, prove=False)


class Leaves(keras.Model):
    """Its loss reads what the call has left in an attribute."""

    def __init__(self):
        super().__init__()
        self.mean, self.answer = keras.layers.Dense(3), keras.layers.Dense(2)

    def call(self, x):
        self.code = self.mean(x)
        return self.answer(self.code)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) + ops.mean(self.code**2)


def test_a_loss_may_read_what_the_call_has_left_in_an_attribute():
    keras.utils.set_random_seed(0)
    made = Leaves()
    made.compile("sgd", "mse", metrics=["mae"])
    options = {"batch_size": 4, "verbose": 0, "return_dict": True}
    found = cn.evaluate(made, X, Y, devices=2, **options)
    assert found == pytest.approx(made.evaluate(X, Y, **options), rel=1e-5)
