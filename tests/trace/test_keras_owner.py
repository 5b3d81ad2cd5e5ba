"""The search through all Python objects for what Keras knows of a variable: canaries.

Seen with TensorFlow 2.21.0 and Keras 3.15.0: nothing leads from a tf.Variable to the Keras variable around
it. If one of these fails with another version, look at how Keras holds its variables there.
"""

import gc
import weakref

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn
from colonnade.run.trace.keras_owner import keras_variable, layer_of

SEEN_WITH = "seen with TensorFlow 2.21.0 and Keras 3.15.0"
HERE = f"{SEEN_WITH}; this is TensorFlow {tf.__version__} and Keras {keras.__version__}"


def test_the_keras_variable_around_a_variable():
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    alone = tf.Variable([1.0])
    assert keras_variable(layer.kernel.value) is layer.kernel, HERE
    assert keras_variable(layer.bias.value) is layer.bias, HERE
    assert keras_variable(alone) is None, HERE
    later = keras.Variable([1.0])  # what is made after a search is found by the next one
    assert keras_variable(later.value) is later, HERE


def test_the_layer_whose_state_a_variable_is():
    norm, inherited = keras.layers.BatchNormalization(), type("Own", (keras.layers.BatchNormalization,), {})()
    recurrent = keras.layers.LSTM(2, stateful=True)
    for layer in (norm, inherited):
        layer.build((None, 3))
    recurrent(np.zeros((4, 2, 3), "float32"))
    assert layer_of(norm.moving_mean.value) is norm, HERE
    assert layer_of(inherited.moving_mean.value) is inherited, HERE
    assert [layer_of(state.value) for state in recurrent.states] == [recurrent] * 2, HERE
    assert layer_of(norm.gamma.value) is None, HERE


def test_a_search_keeps_nothing_alive():
    one = keras.Variable([1.0])
    gone = weakref.ref(one.value)
    assert keras_variable(one.value) is one
    del one
    gc.collect()
    assert gone() is None, HERE


def test_what_is_frozen_is_found():
    """gc.freeze() hides objects from gc.get_objects(): a layer with trainable=False would be trained."""
    fixed, norm = keras.layers.Dense(3), keras.layers.BatchNormalization()
    unbuilt = keras.layers.BatchNormalization()
    model = keras.Sequential([fixed, norm, keras.layers.Dense(1)])
    model.build((None, 2))
    fixed.trainable = False
    before = fixed.kernel.numpy()
    gc.collect()
    gc.freeze()
    later = keras.Variable([1.0])
    trainer = cn.Trainer(
        lambda x, y: keras.losses.mean_squared_error(y, model(x, training=True)),
        keras.optimizers.SGD(0.1),
        devices=2,
    )
    trainer.train_on_batch(np.arange(8, dtype="float32").reshape(4, 2), np.ones((4, 1), "float32"))
    np.testing.assert_array_equal(fixed.kernel.numpy(), before)
    assert layer_of(norm.moving_mean.value) is norm, HERE
    assert keras_variable(later.value) is later, HERE
    unbuilt.build((None, 3))  # its variables are not frozen, and it is
    assert layer_of(unbuilt.moving_mean.value) is unbuilt, HERE
