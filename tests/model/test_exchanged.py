"""Functions that a model is lent, and what it has afterwards."""

from contextlib import suppress

import keras

from colonnade.run.model.exchanged import lent


def model():
    made = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    made.compile("sgd", "mse", steps_per_execution=2)
    return made


def test_a_model_has_its_own_again_whatever_happens():
    made = model()
    made.make_test_function()
    own = made.test_function
    with lent(made, 3, test_function=len, train_function=None):
        assert (made.test_function, made.steps_per_execution) == (len, 6)
        with suppress(KeyError), lent(made, test_function=max):
            assert (made.test_function, made.steps_per_execution) == (max, 6)
            raise KeyError
        assert made.test_function is len
    assert (made.test_function, made.train_function, made.steps_per_execution) == (own, None, 2)


def test_a_model_that_was_compiled_meanwhile_has_none_of_before():
    made = model()
    made.make_test_function()
    with lent(made, test_function=len):
        made.compile("sgd", "mse")
    assert made.test_function is None
