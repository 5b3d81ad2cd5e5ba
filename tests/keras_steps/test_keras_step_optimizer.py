"""An optimizer of `cn.fit` is made for the variables of the model, in their order, as `model.fit` makes it.

By that order Keras puts averages into weights when a fit ends, and state into an optimizer that is loaded.
"""

import keras
import numpy as np
import pytest
from families import long

import colonnade as cn

RANDOM = np.random.default_rng(1)
X = [RANDOM.normal(size=(32, 4)).astype("float32") for _ in range(2)]
Y = RANDOM.normal(size=(32, 1)).astype("float32")
FIT = {"batch_size": 8, "verbose": 0, "shuffle": False}


@keras.saving.register_keras_serializable()
class Scaled(keras.layers.Layer):
    """Has a weight that it does not use, which Keras counts all the same."""

    def build(self, shape):
        self.spare = self.add_weight(shape=[3], name="spare")
        self.scale = self.add_weight(shape=[shape[-1]], initializer="ones", name="scale")

    def call(self, x):
        return x * self.scale


def built(optimizer):
    """The layers are used in another order than the model lists them, and have weights of the same shape."""
    keras.utils.set_random_seed(1)
    a, b = keras.Input([4]), keras.Input([4])
    late = keras.layers.Dense(4, name="late")(keras.layers.Dense(4, name="deep")(a))
    early = keras.layers.Dense(4, name="early")(b)
    model = keras.Model(
        [a, b], keras.layers.Dense(1, name="head")(Scaled(name="scaled")(keras.layers.Add()([early, late])))
    )
    model.compile(optimizer(), "mse")
    return model


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.Adam(0.01),
    "averages": lambda: keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.5),
}


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # of the spare weight, by Keras itself
@pytest.mark.parametrize("variables", ["shared", "mirrored", "partitioned"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_averages_and_loaded_state_are_of_the_right_variables(tmp_path, kind, variables):
    after = []
    for several in (False, True):
        model = built(OPTIMIZERS[kind])
        if several:
            cn.fit(model, X, Y, epochs=2, devices=2, variables=variables, **FIT)
        else:
            model.fit(X, Y, epochs=2, **FIT)
        names = [v.path.partition("/")[2] for v in model.optimizer.variables]
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        loaded.fit(X, Y, **FIT)
        after.append((names, model.get_weights() + loaded.get_weights()))
    (names, weights), (ours, equal) = after
    assert ours == names
    for weight, other in zip(weights, equal, strict=True):
        np.testing.assert_allclose(other, weight, atol=2e-6)


def by_parts():
    inside = {".*bias": keras.optimizers.Adam(0.1)}
    return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), inside))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("optimizer", [by_parts, *long(lambda: keras.optimizers.ScheduleFreeAdamW(0.01))])
def test_optimizers_that_keras_builds_in_its_step_are_what_they_are_there(optimizer):
    """One wants to hear of variables without a gradient; one assigns to its momenta, in vain."""
    weights = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 2})):
        model = built(optimizer)
        fit(model, X, Y, **FIT, **more)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-6)


def test_a_next_value_in_the_place_of_a_gradient_is_refused_by_name():
    model = keras.Sequential([keras.Input([16]), keras.layers.Dense(16), keras.layers.Dense(2)])
    for layer in model.layers:
        layer.quantize("float8")
    model.compile("sgd", "mse")
    with pytest.raises(cn.InvalidArgument, match=r"variable='.*scale': is given its next value.*float8"):
        cn.fit(model, np.ones([8, 16]), np.ones([8, 2]), devices=2, prove=False, **FIT)


def test_a_loss_that_depends_on_nothing_that_is_trained_is_refused():
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
    model.compile("sgd", lambda y, found: keras.ops.mean(y))
    with pytest.raises(cn.InvalidArgument, match="the loss does not depend on what is trained"):
        cn.fit(model, X[0], Y, devices=2, **FIT)
