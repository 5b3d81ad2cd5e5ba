"""What Keras knows of a variable, found by a search through all objects, as seen with TensorFlow 2.21."""

import gc
from weakref import ref

import keras
import tensorflow as tf

from colonnade.run.trace.keras_owner import around, layer_of


def test_the_keras_variable_around_a_variable():
    dense = keras.layers.Dense(2)
    dense.build([None, 3])
    assert around(dense.kernel.value) is dense.kernel
    assert around(dense.bias.value) is dense.bias
    assert around(tf.Variable(1.0)) is None


def test_one_that_is_made_after_a_search_is_found_too():
    assert around(tf.Variable(1.0)) is None
    later = keras.Variable([1.0])
    assert around(later.value) is later


def test_the_layer_whose_state_it_is():
    norm = keras.layers.BatchNormalization()
    norm.build([None, 3])
    assert layer_of(norm.moving_mean.value) is norm
    assert layer_of(norm.gamma.value) is None
    lstm = keras.layers.LSTM(2, stateful=True)
    lstm(tf.ones([1, 3, 2]))
    assert [layer_of(state.value) for state in lstm.states] == [lstm, lstm]


def test_layers_of_the_users_own_are_found():
    class Norm(keras.layers.BatchNormalization):
        pass

    norm = Norm()
    norm.build([None, 3])
    assert layer_of(norm.moving_mean.value) is norm


def test_nothing_lives_longer_because_it_was_looked_at():
    variable = keras.Variable([1.0])
    gone = ref(variable)
    assert around(variable.value) is variable
    del variable
    gc.collect()
    assert gone() is None
