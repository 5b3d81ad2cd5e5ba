"""The pieces that random models are made of: each takes four numbers per example and gives four.

Some write to variables while they are called, as layers of Keras and of its users do. All is float64.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

WIDTH, ROWS, LOOKUPS = 4, 5, 2  # numbers per example, rows of a table, ids per example
DTYPE = "float64"


class Table(keras.layers.Layer):
    """Has a table; how it is read decides whether its gradient is sparse."""

    def __init__(self, how: str) -> None:
        super().__init__(dtype=DTYPE)
        self.how = how

    def build(self, *_: Any) -> None:
        self.table = self.add_weight(shape=[ROWS, WIDTH], initializer="normal", name="table")

    def call(self, x: Any, ids: Any) -> Any:
        table = tf.convert_to_tensor(self.table)
        if self.how == "dense":
            return x + tf.reduce_mean(tf.one_hot(ids, ROWS, dtype=DTYPE) @ table, axis=1)
        if self.how == "positions":
            return x + tf.reduce_mean(tf.gather(self.table.value, tf.range(3)) ** 2, axis=0)
        if self.how == "counted":  # each row once
            rows, places, _ = tf.unique_with_counts(tf.reshape(ids, [-1]))
            looked = tf.gather(tf.gather(self.table.value, rows), places)
            return x + tf.reduce_mean(tf.reshape(looked, [-1, LOOKUPS, WIDTH]), axis=1)
        # Small slices look rows up as large ones multiply: what is traced depends on the size.
        if self.how == "by size" and x.shape[0] is not None and x.shape[0] <= 2:
            return x + tf.reduce_mean(tf.one_hot(ids, ROWS, dtype=DTYPE) @ table, axis=1)
        looked = tf.reduce_mean(tf.gather(self.table.value, ids), axis=1)
        if self.how == "tied":  # as the last layer of a language model: rows, and the whole
            return tf.tanh((x + looked) @ tf.transpose(table))[:, :WIDTH]
        return x + looked


class Counter(keras.layers.Layer):
    """Counts calls or examples; without a word on replicas, a count is the mean of theirs."""

    def __init__(self, what: str, kind: str, aggregation: str | None) -> None:
        super().__init__(dtype=DTYPE)
        self.what, self.kind, self.aggregation = what, kind, aggregation

    def build(self, *_: Any) -> None:
        options = {"aggregation": self.aggregation} if self.aggregation else {}
        self.count = self.add_weight(
            shape=[], initializer="zeros", dtype=self.kind, trainable=False, name=self.what, **options
        )

    def call(self, x: Any) -> Any:
        number = 1 if self.what == "steps" else tf.shape(x)[0]
        self.count.assign(self.count + tf.cast(number, self.kind))
        return x


class Branch(keras.layers.Layer):
    def build(self, *_: Any) -> None:
        self.w = self.add_weight(shape=[WIDTH], initializer="normal", name="w")

    def call(self, x: Any) -> Any:
        w = tf.convert_to_tensor(self.w)
        return tf.cond(w[0] > 0, lambda: tf.tanh(x * w), lambda: x - w)


class Masked(keras.layers.Layer):
    """As a masked convolution: it takes a part of its kernel away whenever it is called."""

    def build(self, *_: Any) -> None:
        self.kernel = self.add_weight(shape=[WIDTH, WIDTH], initializer="normal", name="kernel")

    def call(self, x: Any) -> Any:
        triangle = tf.linalg.band_part(tf.ones([WIDTH, WIDTH], DTYPE), -1, 0)
        self.kernel.assign(self.kernel * triangle)
        return tf.tanh(x @ tf.convert_to_tensor(self.kernel))


def _layer(make: Callable[..., Any], *args: Any, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda x, ids: make(*args, dtype=DTYPE, **options)(x)


def _conv(x: Any, ids: Any) -> Any:
    layers = keras.layers
    x = layers.Reshape([2, 2, 1], dtype=DTYPE)(x)
    x = layers.Conv2D(3, 2, padding="same", activation="tanh", use_bias=False, dtype=DTYPE)(x)
    x = layers.Conv2D(1, 1, use_bias=False, dtype=DTYPE)(x)
    return layers.Reshape([WIDTH], dtype=DTYPE)(x)


def _embedding(x: Any, ids: Any) -> Any:
    looked = keras.layers.Embedding(ROWS, WIDTH, dtype=DTYPE)(ids)
    pooled = keras.layers.GlobalAveragePooling1D(dtype=DTYPE)(looked)
    return keras.layers.Add(dtype=DTYPE)([x, pooled])


class Twice(keras.layers.Dense):
    """To be found in a model."""


def _twice(x: Any, ids: Any) -> Any:
    shared = Twice(WIDTH, "tanh", use_bias=False, dtype=DTYPE)
    return shared(shared(x))


def _norm(**options: Any) -> Callable[[Any, Any], Any]:
    return _layer(keras.layers.BatchNormalization, momentum=0.5, **options)


# A bias in front of a normalisation has no gradient but rounding, so only the last layer has one.
BLOCKS: dict[str, Callable[[Any, Any], Any]] = {
    "dense": _layer(keras.layers.Dense, WIDTH, "tanh", use_bias=False),
    "conv": _conv,
    "embedding": _embedding,
    "embedding dense": lambda x, ids: Table("dense")(x, ids),
    "embedding of distinct ids": lambda x, ids: Table("counted")(x, ids),
    "embedding by size": lambda x, ids: Table("by size")(x, ids),
    "tied table": lambda x, ids: Table("tied")(x, ids),
    "twice": _twice,
    "positions": lambda x, ids: Table("positions")(x, ids),
    "norm": _norm(synchronized=True),
    "local norm": _norm(),
    "branch": lambda x, ids: Branch(dtype=DTYPE)(x),
    "no dropout": _layer(keras.layers.Dropout, 0.0),
    "steps": lambda x, ids: Counter("steps", DTYPE, None)(x),
    "whole steps": lambda x, ids: Counter("steps", "int64", None)(x),
    "examples": lambda x, ids: Counter("own_examples", DTYPE, None)(x),
    "examples summed": lambda x, ids: Counter("examples", DTYPE, "sum")(x),
    "whole examples summed": lambda x, ids: Counter("examples", "int64", "sum")(x),
    "spectral": lambda x, ids: keras.layers.SpectralNormalization(
        keras.layers.Dense(WIDTH, "tanh", dtype=DTYPE), dtype=DTYPE
    )(x),
    "masked": lambda x, ids: Masked(dtype=DTYPE)(x),
}
NORMS = {"norm", "local norm"}
# What depends on how often a layer is called, or on which rows come together.
STATES = {"steps", "whole steps", "examples", "examples summed", "whole examples summed"}


def model(
    blocks: tuple[str, ...], regularised: bool, kind: Callable[..., keras.Model] = keras.Model
) -> keras.Model:
    x = keras.Input([WIDTH], dtype=DTYPE)
    ids = keras.Input([LOOKUPS], dtype="int64")
    value = x
    for name in blocks:
        value = BLOCKS[name](value, ids)
    regularizer = keras.regularizers.L2(0.1) if regularised else None
    head = keras.layers.Dense(1, dtype=DTYPE, kernel_regularizer=regularizer, name="head")
    return kind([x, ids], head(value))
