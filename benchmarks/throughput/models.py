"""The seven models in Keras: each a loss per example, used by every contender of TensorFlow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tasks import TASKS, Arrays, images

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Model:
    """How to make a loss function with its variables, and data for it."""

    build: Callable[[], Loss]
    data: Callable[[np.random.Generator], Arrays]
    steps: int  # per call


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


def wide(units: int) -> Callable[[], Loss]:
    return classifier(
        layers.Flatten,
        lambda: layers.Dense(units, activation="relu"),
        lambda: layers.Dense(units, activation="relu"),
        lambda: layers.Dense(10),
        inputs=(28, 28, 1),
    )


STACKS = {
    "polynomial": polynomial,
    "mlp": wide(1024),
    "cnn": classifier(
        lambda: layers.Conv2D(32, 5, padding="same", activation="relu"),
        layers.MaxPooling2D,
        lambda: layers.Conv2D(64, 5, padding="same", activation="relu"),
        layers.MaxPooling2D,
        layers.Flatten,
        lambda: layers.Dense(256, activation="relu"),
        lambda: layers.Dense(10),
        inputs=(28, 28, 1),
    ),
    "cifar": classifier(
        *conv_and_norm(16),
        layers.MaxPooling2D,
        *conv_and_norm(32),
        layers.MaxPooling2D,
        *conv_and_norm(64),
        layers.GlobalAveragePooling2D,
        lambda: layers.Dense(10),
        inputs=(32, 32, 3),
    ),
    "lstm": classifier(
        lambda: layers.LSTM(64, return_sequences=True),
        lambda: layers.LSTM(64),
        lambda: layers.Dense(10),
        inputs=(28, 28),
    ),
    "embedding": classifier(
        lambda: layers.Embedding(50_000, 64),
        layers.GlobalAveragePooling1D,
        lambda: layers.Dense(64, activation="relu"),
        lambda: layers.Dense(10),
        inputs=(16,),
        dtype="int32",
    ),
    "transformer": classifier(
        lambda: layers.Embedding(5_000, 64),
        Positions,
        attention(64, heads=4),
        attention(64, heads=4),
        layers.GlobalAveragePooling1D,
        lambda: layers.Dense(10),
        inputs=(16,),
        dtype="int32",
    ),
}
MODELS = {name: Model(build, TASKS[name].data, TASKS[name].steps) for name, build in STACKS.items()}
# For memory only: 20 million parameters, and twice that in the optimizer.
LARGE = Model(wide(4096), images(28, 1), steps=1)
