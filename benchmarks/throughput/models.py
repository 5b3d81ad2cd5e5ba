"""The seven models: each a loss per example, written once and used by every contender."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

BATCH = 256  # the global batch on any number of devices: 128 each on 2, 8 each on 32
BATCHES = 4  # different batches, gone through again and again

Loss = Callable[[Any, Any], Any]
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Model:
    """How to make a loss function with its variables, and data for it."""

    build: Callable[[], Loss]
    data: Callable[[np.random.Generator], Arrays]
    steps: int  # per call, so that a call takes some tenths of a second on two cores


def polynomial() -> Loss:
    w = tf.Variable(tf.zeros([3, 1]))

    def loss(x: Any, y: Any) -> Any:
        return tf.squeeze((tf.concat([x * x, x, tf.ones_like(x)], axis=1) @ w - y) ** 2, axis=1)

    return loss


def classifier(*stack: Any, inputs: tuple[int, ...], dtype: str = "float32") -> Callable[[], Loss]:
    """The loss of a Keras network whose layers are made by functions, anew for each build."""

    def build() -> Loss:
        entry = outputs = keras.Input(inputs, dtype=dtype)
        for make in stack:
            outputs = make()(outputs)
        network = keras.Model(entry, outputs)

        def loss(x: Any, y: Any) -> Any:
            logits = network(x, training=True)
            return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

        return loss

    return build


def conv_and_norm(filters: int) -> list[Callable[[], Any]]:
    return [
        lambda: layers.Conv2D(filters, 3, padding="same", use_bias=False),
        layers.BatchNormalization,
        layers.ReLU,
    ]


def attention(width: int, heads: int) -> Callable[[], Any]:
    """A transformer block: attention and a small network, each added to what it got."""

    def make() -> Callable[[Any], Any]:
        def block(x: Any) -> Any:
            normed = layers.LayerNormalization()(x)
            x = x + layers.MultiHeadAttention(heads, width // heads)(normed, normed)
            hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
            return x + layers.Dense(width)(hidden)

        return block

    return make


class Positions(layers.Layer):
    """Adds a learned vector for each position."""

    def build(self, shape: tuple[int, ...]) -> None:
        self.vectors = self.add_weight(shape=shape[1:])

    def call(self, x: Any) -> Any:
        return x + self.vectors


def images(side: int, channels: int) -> Callable[[np.random.Generator], Arrays]:
    def data(rng: np.random.Generator) -> Arrays:
        x = rng.normal(size=(BATCH * BATCHES, side, side, channels)).astype("float32")
        return x, labels(rng)

    return data


def tokens(length: int, words: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: (rng.integers(0, words, (BATCH * BATCHES, length), np.int32), labels(rng))


def series(length: int, width: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: (rng.normal(size=(BATCH * BATCHES, length, width)).astype("float32"), labels(rng))


def labels(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 10, BATCH * BATCHES, np.int32)


def curve(rng: np.random.Generator) -> Arrays:
    x = rng.uniform(-1, 1, (BATCH * BATCHES, 1)).astype("float32")
    return x, 5 * x**2 + 3


def wide(units: int) -> Callable[[], Loss]:
    return classifier(
        layers.Flatten,
        lambda: layers.Dense(units, activation="relu"),
        lambda: layers.Dense(units, activation="relu"),
        lambda: layers.Dense(10),
        inputs=(28, 28, 1),
    )


MODELS = {
    "polynomial": Model(polynomial, curve, steps=200),
    "mlp": Model(wide(1024), images(28, 1), steps=20),
    "cnn": Model(
        classifier(
            lambda: layers.Conv2D(32, 5, padding="same", activation="relu"),
            layers.MaxPooling2D,
            lambda: layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D,
            layers.Flatten,
            lambda: layers.Dense(256, activation="relu"),
            lambda: layers.Dense(10),
            inputs=(28, 28, 1),
        ),
        images(28, 1),
        steps=5,
    ),
    "cifar": Model(
        classifier(
            *conv_and_norm(16),
            layers.MaxPooling2D,
            *conv_and_norm(32),
            layers.MaxPooling2D,
            *conv_and_norm(64),
            layers.GlobalAveragePooling2D,
            lambda: layers.Dense(10),
            inputs=(32, 32, 3),
        ),
        images(32, 3),
        steps=4,
    ),
    "lstm": Model(
        classifier(
            lambda: layers.LSTM(64, return_sequences=True),
            lambda: layers.LSTM(64),
            lambda: layers.Dense(10),
            inputs=(28, 28),
        ),
        series(28, 28),
        steps=4,
    ),
    "embedding": Model(
        classifier(
            lambda: layers.Embedding(50_000, 64),
            layers.GlobalAveragePooling1D,
            lambda: layers.Dense(64, activation="relu"),
            lambda: layers.Dense(10),
            inputs=(16,),
            dtype="int32",
        ),
        tokens(16, 50_000),
        steps=10,
    ),
    "transformer": Model(
        classifier(
            lambda: layers.Embedding(5_000, 64),
            Positions,
            attention(64, heads=4),
            attention(64, heads=4),
            layers.GlobalAveragePooling1D,
            lambda: layers.Dense(10),
            inputs=(16,),
            dtype="int32",
        ),
        tokens(16, 5_000),
        steps=4,
    ),
}
# For memory only: 20 million parameters, and twice that in the optimizer.
LARGE = Model(wide(4096), images(28, 1), steps=1)
