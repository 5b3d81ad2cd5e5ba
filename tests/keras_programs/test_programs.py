"""Keras programs of many kinds: `cn.fit` on 2 and 4 devices equals `model.fit`, or says why not.

All is float64, so that a difference is a mistake and not rounding: 1e-9 of the largest number. Batches of 10
make slices of 3, 3, 2 and 2 on four devices, and the last batch has 4 examples.
"""

from types import GeneratorType

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long
from keras_programs import (
    data_and_callbacks,
    given_noise,
    more_steps,
    newcomers,
    odd_corners,
    optimizers,
    other_inputs,
    own_steps,
    plain_steps,
    rarer_layers,
    rarer_losses,
    rarer_steps,
    refused,
    several_networks,
    summed_steps,
    uneven,
    wrapped_steps,
)

import colonnade as cn

pytestmark = pytest.mark.usefixtures("double")

EQUAL = plain_steps.EQUAL | own_steps.EQUAL | more_steps.EQUAL | several_networks.EQUAL
EQUAL |= other_inputs.EQUAL | odd_corners.EQUAL | uneven.EQUAL | wrapped_steps.EQUAL
EQUAL |= given_noise.EQUAL | newcomers.EQUAL | summed_steps.EQUAL
RARER = optimizers.EQUAL | rarer_layers.EQUAL | rarer_losses.EQUAL | rarer_steps.EQUAL
RARER |= data_and_callbacks.EQUAL
EQUAL |= RARER
DRAWING = (given_noise, more_steps, newcomers, other_inputs, own_steps, plain_steps, optimizers)
DRAWING += (rarer_layers, rarer_losses, rarer_steps, data_and_callbacks)
REFUSED = refused.REFUSED | odd_corners.REFUSED | uneven.REFUSED
REFUSED |= rarer_losses.REFUSED
# What has the size of its batches.
IN_BATCHES = (tf.data.Dataset, keras.utils.PyDataset, GeneratorType)
# Keras does not evaluate these, or not twice alike: one loss has a state, one dataset turns its order around.
NOT_EVALUATED = (
    "a loss that remembers",
    "batches by workers",
    "physics in a train_step",
    "a Jacobian in a train_step",
    "layers that are trained one by one",
    "diffusion with an average network that is tested",
    "diffusion with a loss for each example",
)
WHAT_KERAS_SAYS = pytest.mark.filterwarnings(
    "ignore:Gradients do not exist",
    "ignore:`model.compiled_",
    "ignore:.*calls Python",
    "ignore:`shuffle=True` was passed",
    "ignore:When providing `inputs` as a dict",
    "ignore:The structure of `inputs`",
)
TOLERANCE = 1e-9
# Keras computes or keeps these in float32, whatever it is given: some steps of that.
COARSE = {"CTC": 5e-7, "captcha reader": 5e-7, "LoRA": 5e-7, "int8": 5e-7, "CTC of several lengths": 5e-7}


def prepared(make, batch_size=10):
    """A program from its start: the model, its data, the size of batches, options."""
    keras.utils.clear_session()  # or layers have other names the second time
    keras.utils.set_random_seed(0)
    for module in DRAWING:
        module.RNG = np.random.default_rng(1)
    made, data, *options = make()
    size = {} if isinstance(data[0], IN_BATCHES) else {"batch_size": batch_size}
    return made, data, size, options[0] if options else {}


def trained(make, fit, batch_size=10, **more):
    made, data, size, options = prepared(make, batch_size)
    names = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    options = {"epochs": 2, "shuffle": False, "verbose": 0, **options}
    history = fit(made, **{**options, **size, **names, **more}).history
    return history, [(v.path, v.numpy()) for v in made.variables]


def assert_close(found, expected, name, tolerance=TOLERANCE):
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, atol=tolerance * scale, rtol=0, err_msg=name)


def untrained(make):
    """The weights before the first step, of a model that has any by then."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    made, *_ = make()
    return {v.path.partition("/")[2]: v.numpy() for v in made.trainable_variables}


def assert_that_of_keras(name, devices):
    """History and all variables; and that there was something to compare."""
    tolerance = COARSE.get(name, TOLERANCE)
    expected, variables = trained(EQUAL[name], keras.Model.fit)
    history, found = trained(EQUAL[name], cn.fit, devices=devices)
    assert history.keys() == expected.keys()
    assert all(values and np.isfinite(values).all() for values in expected.values()), expected
    assert expected
    for metric in expected:
        assert_close(history[metric], expected[metric], metric, tolerance)
    assert len(found) == len(variables) > 0
    for (path, one), (_, other) in zip(found, variables, strict=True):
        assert_close(one, other, path, tolerance)
    # A training that changes nothing would be equal as well.
    before, after = untrained(EQUAL[name]), {path.partition("/")[2]: value for path, value in variables}
    both = [(before[path], after[path]) for path in before.keys() & after.keys()]
    assert not both or any(not np.array_equal(one, other) for one, other in both)


# A handful is in `make test`, one of each kind; the soak has all.
CASES = [(name, devices) for name in EQUAL for devices in (2, 4)]
QUICK = [
    ("WGAN-GP", 2),
    ("a compute_loss for each token", 2),
    ("gradients that are divided by hand", 4),
    ("triplets in a train_step", 4),
    ("synchronised batch norm in a train_step", 4),
]


@pytest.mark.parametrize(("name", "devices"), [case for case in CASES if case in QUICK])
def test_a_program_is_that_of_keras(name, devices):
    assert_that_of_keras(name, devices)


@pytest.mark.long
@WHAT_KERAS_SAYS
@pytest.mark.parametrize(("name", "devices"), [case for case in CASES if case not in QUICK])
def test_every_program_is_that_of_keras(name, devices):
    assert_that_of_keras(name, devices)


@pytest.mark.long
@WHAT_KERAS_SAYS
@pytest.mark.parametrize("name", [name for name in RARER if name not in NOT_EVALUATED])
def test_a_trained_program_is_evaluated_and_predicts_as_with_keras(name):
    made, data, size, _ = prepared(RARER[name])
    names = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    if isinstance(data[0], GeneratorType) or (
        isinstance(data[0], tf.data.Dataset) and data[0].cardinality() == tf.data.INFINITE_CARDINALITY
    ):
        pytest.skip("its data have no end")
    keras.Model.fit(made, **names, **size, verbose=0)
    options = {**size, "verbose": 0}
    expected = made.evaluate(**names, **options, return_dict=True)
    found = cn.evaluate(made, **names, **options, return_dict=True, devices=4)
    assert found.keys() == expected.keys()
    tolerance = COARSE.get(name, TOLERANCE)
    for metric in expected:
        assert_close(found[metric], expected[metric], metric, tolerance)
    pairs = made.predict(data[0], **options), cn.predict(made, data[0], **options, devices=4)
    for one, other in zip(*map(tf.nest.flatten, pairs), strict=True):
        assert_close(other, one, "prediction", tolerance)


class Scaled(keras.Model):
    """A step that scales its loss itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = keras.layers.Dense(16, "relu"), keras.layers.Dense(3, dtype="float32")

    def call(self, x):
        return self.outer(self.inner(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.filterwarnings("error:.*not proved")
@pytest.mark.parametrize("scale", [2.0**30, *long(2.0**16, 2.0**22)])
def test_what_halves_hold_of_a_batch_they_hold_of_its_slices_in_a_train_step(scale):
    """The first holds, the others overflow: steps are left out, and the scale is halved."""
    keras.config.set_floatx("float32")
    both = []
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 6)).astype("float32"), rng.integers(0, 3, 30)
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 4})):
        keras.config.set_dtype_policy("mixed_float16")
        keras.utils.set_random_seed(0)
        made, optimizer = Scaled(), keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), scale)
        made.compile(optimizer, plain_steps.crossentropy())
        history = fit(made, x, y, batch_size=10, shuffle=False, verbose=0, **more).history
        weights = made.inner.kernel.numpy(), made.outer.kernel.numpy()
        both.append(
            [history["loss"], optimizer.dynamic_scale.numpy(), optimizer.iterations.numpy(), *weights]
        )
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(other, one, atol=2e-3)


SAID = kept(
    REFUSED,
    "contrastive loss in a train_step",
    "fixed batch size",
    "queue of codes",
    "examples counted in a layer",
    "texts padded to the longest of a slice",
    "a table of the batch in a train_step",
    "a division by no groups",
)


@pytest.mark.parametrize("name", SAID)
def test_a_program_that_cannot_be_equal_is_refused_with_its_cause(name):
    make, says = REFUSED[name]
    with pytest.raises(cn.InvalidArgument, match=says):
        trained(make, cn.fit, devices=2, batch_size=8)


@pytest.mark.long
def test_mixed_precision_is_that_of_keras_to_halves():
    """Weights are float32; what is computed in halves is rounded to 1 in 1 000, and every step adds to it."""
    keras.config.set_floatx("float32")
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 2}), (cn.fit, {"devices": 4})):
        keras.config.set_dtype_policy("mixed_float16")
        keras.utils.set_random_seed(0)
        inner = [keras.layers.Dense(32, "relu"), keras.layers.Dense(3, dtype="float32")]
        made = keras.Sequential([keras.Input([6]), *inner])
        made.compile(keras.optimizers.SGD(0.1), plain_steps.crossentropy(), metrics=["accuracy"])
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(40, 6)).astype("float32"), rng.integers(0, 3, 40)
        history = fit(made, x, y, epochs=3, batch_size=10, shuffle=False, verbose=0, **more).history
        assert made.optimizer.name.startswith("loss_scale")
        both.append([history["loss"], *made.get_weights()])
    for one, *others in zip(*both, strict=True):
        for other in others:
            np.testing.assert_allclose(other, one, atol=2e-3)


@pytest.mark.parametrize("name", kept(refused.RANDOM))
def test_a_program_that_draws_numbers_trains_and_is_proved_without_them(name, capsys):
    history, variables = trained(refused.RANDOM[name], cn.fit, devices=2)
    assert all(np.isfinite(values).all() for values in history.values())
    assert all(np.isfinite(value).all() for _, value in variables)
    made, data = refused.RANDOM[name]()
    cn.fit(made, *data, devices=2, shuffle=False, verbose=2)
    assert "proved on the first batch, without the random numbers" in capsys.readouterr().out
