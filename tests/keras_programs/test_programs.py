"""Keras programs of many kinds: `cn.fit` on 2 and 4 devices equals `model.fit`, or says why not.

All is float64, so that a difference is a mistake and not rounding: 1e-9 of the largest number. Batches of 10
make slices of 3, 3, 2 and 2 on four devices, and the last batch has 4 examples.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept
from keras_programs import own_steps, plain_steps, refused

import colonnade as cn

EQUAL = plain_steps.EQUAL | own_steps.EQUAL
TOLERANCE = 1e-9


@pytest.fixture(autouse=True)
def double():
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def trained(make, fit, **more):
    keras.utils.set_random_seed(0)
    for module in (own_steps, plain_steps):
        module.RNG = np.random.default_rng(1)
    made, data, *options = make()
    size = {} if isinstance(data[0], tf.data.Dataset) else {"batch_size": 10}
    names = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    options = {**(options[0] if options else {}), **size, **names, **more}
    history = fit(made, epochs=2, shuffle=False, verbose=0, **options).history
    return history, [(v.path, v.numpy()) for v in made.variables]


def assert_close(found, expected, name):
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, atol=TOLERANCE * scale, rtol=0, err_msg=name)


# A handful is in `make test`, one of each kind; the soak has all.
CASES = [(name, devices) for name in EQUAL for devices in (2, 4)]
QUICK = [
    ("mask at the output", 2),
    ("loss that compares examples", 2),
    ("WGAN-GP", 2),
    ("embedding in a train_step", 2),
]


@pytest.mark.parametrize(("name", "devices"), [case for case in CASES if case in QUICK])
def test_a_program_is_that_of_keras(name, devices):
    expected, variables = trained(EQUAL[name], keras.Model.fit)
    history, found = trained(EQUAL[name], cn.fit, devices=devices)
    assert history.keys() == expected.keys()
    for metric in expected:
        assert_close(history[metric], expected[metric], metric)
    for (path, one), (_, other) in zip(found, variables, strict=True):
        assert_close(one, other, path)


@pytest.mark.long
@pytest.mark.parametrize(("name", "devices"), [case for case in CASES if case not in QUICK])
def test_every_program_is_that_of_keras(name, devices):
    test_a_program_is_that_of_keras(name, devices)


SAID = kept(refused.REFUSED, "contrastive loss in a train_step", "fixed batch size")


@pytest.mark.parametrize("name", SAID)
def test_a_program_that_cannot_be_equal_is_refused_with_its_cause(name):
    make, says = refused.REFUSED[name]
    with pytest.raises(cn.InvalidArgument, match=says):
        trained(make, cn.fit, devices=2, batch_size=8)


@pytest.mark.parametrize("name", kept(refused.RANDOM))
def test_a_program_that_draws_numbers_trains_and_says_that_it_is_not_proved(name, capsys):
    history, variables = trained(refused.RANDOM[name], cn.fit, devices=2)
    assert all(np.isfinite(values).all() for values in history.values())
    assert all(np.isfinite(value).all() for _, value in variables)
    made, data = refused.RANDOM[name]()
    cn.fit(made, *data, devices=2, shuffle=False, verbose=2)
    assert "not proved on the first batch: it draws random numbers" in capsys.readouterr().out
