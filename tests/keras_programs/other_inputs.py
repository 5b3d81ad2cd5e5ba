"""Ragged and sparse inputs, labels that are not aligned, adapters and small integers; layers with metrics."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.plain_steps import compiled, crossentropy, stack

RNG = np.random.default_rng(11)
FLAT, NEXT = RNG.normal(size=(24, 6)), RNG.normal(size=(24, 2))
LABELS = RNG.integers(0, 3, 24)
SOUND, HEARD = RNG.normal(size=(24, 9, 4)), RNG.integers(1, 5, (24, 3)).astype("int32")
WORDS = tf.ragged.constant([list(RNG.integers(1, 9, RNG.integers(1, 6))) for _ in range(24)], dtype="int64")
FEW = tf.sparse.from_dense(RNG.normal(size=(24, 30)) * (RNG.uniform(size=(24, 30)) < 0.1))


def masked_without_an_input():
    """The model is built by its first batch, and then seen to have a mask at its output."""
    inner = (layers.Embedding(9, 4, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(3))
    padded = WORDS.to_tensor()
    labels = RNG.integers(0, 3, padded.shape)
    return compiled(keras.Sequential(list(inner)), crossentropy(), metrics=["accuracy"]), (padded, labels)


class OfWords(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.answer = layers.Embedding(10, 4), layers.Dense(2)

    def call(self, words):
        sums = tf.math.unsorted_segment_sum(self.table(words.values), words.value_rowids(), words.nrows())
        return self.answer(sums)


def ragged_words():
    return compiled(OfWords()), (tf.data.Dataset.from_tensor_slices((WORDS, NEXT)).batch(10),)


def sparse_features():
    given = keras.Input([30], sparse=True)
    return compiled(keras.Model(given, layers.Dense(2)(layers.Dense(4, "tanh")(given)))), (FEW, NEXT)


class Aligned(layers.Layer):
    """The captcha reader's: one loss for each example."""

    def call(self, labels, found):
        rows = ops.shape(labels)[0]
        lengths = [ops.full((rows,), ops.shape(each)[1], "int32") for each in (labels, found)]
        self.add_loss(ops.ctc_loss(labels, found, *lengths, mask_index=0))
        return found


def captcha_reader():
    sound, label = keras.Input([9, 4], name="sound"), keras.Input([3], dtype="int32", name="label")
    found = layers.Dense(6)(layers.Bidirectional(layers.LSTM(4, return_sequences=True))(sound))
    made = keras.Model([sound, label], Aligned()(label, found))
    made.compile(keras.optimizers.SGD(0.001))
    return made, ({"sound": SOUND, "label": HEARD},)


def adapters():
    """LoRA, whose matrices Keras keeps in float32."""
    made = stack(layers.Embedding(20, 6), layers.GlobalAveragePooling1D(), layers.Dense(3), given=(5,))
    for layer in (made.layers[0], made.layers[2]):
        layer.enable_lora(2)
    return compiled(made, crossentropy()), (RNG.integers(0, 20, (24, 5)), LABELS)


def small_integers():
    """Kernels of 8 bits, whose scales Keras keeps in float32; adapters and biases are trained."""
    made = stack(layers.Dense(8, "tanh"), layers.Dense(3))
    for layer in made.layers:  # `made.quantize` warns of the input
        layer.quantize("int8")
    made.layers[0].enable_lora(2)
    return compiled(made, crossentropy()), (FLAT, LABELS)


class Watched(layers.Layer):
    """Two metrics of a layer's own: one is given a mean, one a value for each example."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4)
        self.size, self.largest = keras.metrics.Mean("size"), keras.metrics.Mean("largest")

    def call(self, x):
        found = self.dense(x)
        self.size.update_state(ops.mean(ops.abs(found)))
        self.largest.update_state(ops.max(found, axis=-1))
        return found


def metrics_of_a_layer():
    made = compiled(stack(Watched(), layers.Dense(2)), metrics=["mae"])
    return made, (FLAT, NEXT), {"validation_data": (FLAT[:13], NEXT[:13])}


def metrics_of_a_layer_beside_a_sum():
    return compiled(stack(Watched(), layers.Dense(2)), keras.losses.MeanSquaredError(reduction="sum")), (
        FLAT,
        NEXT,
    )


class Freezes(keras.callbacks.Callback):
    """What Keras has traced goes on training it."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.layers[0].trainable = epoch == 0


def frozen_by_a_callback():
    return (
        compiled(stack(layers.Dense(4), layers.Dense(2))),
        (FLAT, NEXT),
        {"callbacks": [Freezes()]},
    )


EQUAL = {
    "a mask without an Input": masked_without_an_input,
    "ragged words": ragged_words,
    "sparse features": sparse_features,
    "captcha reader": captcha_reader,
    "LoRA": adapters,
    "int8": small_integers,
    "metrics of a layer": metrics_of_a_layer,
    "metrics of a layer beside a sum": metrics_of_a_layer_beside_a_sum,
    "frozen by a callback": frozen_by_a_callback,
}
