"""Loss and metrics of whole batches from predictions of slices, where layers add to them."""

import keras
import numpy as np
import pytest
from keras import ops

import colonnade as cn

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
    def test_step(self, data):
        x, y, *_ = data
        return {"loss": ops.sum((self(x) - y) ** 2)}


def test_a_step_of_its_own_that_tells_a_sum_is_refused():
    made = Sums([keras.Input([4]), keras.layers.Dense(2)])
    made.compile()
    with pytest.raises(cn.InvalidArgument, match="test_step='Sums': tells what is no mean"):
        cn.evaluate(made, X, Y, devices=2, verbose=0)
    with pytest.raises(cn.InvalidArgument, match="test_step='Sums': tells what is no mean"):
        cn.test_on_batch(made, X, Y, devices=2)
    cn.evaluate(made, X, Y, devices=2, verbose=0, prove=False)
