"""Programs as people write them who have read Keras's guides: many features at once."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, LABELS, TARGET
from keras_programs.plain_steps import IMAGES, compiled, crossentropy, stack

RNG = np.random.default_rng(23)
WORDS = np.array([["a", "b"], ["c", "a"], ["b", "new"]] * 8)
IDS = tf.ragged.constant([list(RNG.integers(1, 12, RNG.integers(1, 7))) for _ in range(24)], dtype="int64")


def many_metrics():
    made = stack(layers.Dense(4, "relu"), layers.Dense(3, "softmax"))
    metrics = [
        keras.metrics.AUC(multi_label=True, num_labels=3, name="auc"),
        keras.metrics.F1Score(average="macro", name="f1"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.Recall(name="recall"),
    ]
    weighted = [keras.metrics.CategoricalAccuracy(name="weighted")]
    made = compiled(made, "categorical_crossentropy", metrics=metrics, weighted_metrics=weighted)
    classes = np.eye(3)[LABELS]
    options = {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "validation_data": (FLAT[:9], classes[:9])}
    return made, (FLAT, classes), options


def segmentation():
    inner = layers.Conv2D(4, 3, padding="same", activation="relu"), layers.Conv2D(3, 1, activation="softmax")
    metrics = [keras.metrics.MeanIoU(3, sparse_y_pred=False, name="iou"), "sparse_categorical_accuracy"]
    made = stack(*inner, given=(8, 8, 2))
    data = IMAGES, RNG.integers(0, 3, (24, 8, 8))
    return compiled(made, "sparse_categorical_crossentropy", metrics=metrics), data, {"validation_split": 0.2}


def adapted_layers():
    scaled, words = layers.Normalization(), layers.StringLookup(output_mode="multi_hot")
    scaled.adapt(FLAT)
    words.adapt(WORDS)
    kinds, hashed = layers.CategoryEncoding(4, "one_hot"), layers.Hashing(5, output_mode="one_hot")
    a, b = keras.Input([6], name="numbers"), keras.Input([2], dtype="string", name="words")
    c, d = keras.Input([1], dtype="int64", name="kind"), keras.Input([1], dtype="string", name="any")
    x = layers.Dense(8, "relu")(layers.Concatenate()([scaled(a), words(b), kinds(c), hashed(d)]))
    made = keras.Model([a, b, c, d], layers.Dense(2)(layers.BatchNormalization(synchronized=True)(x)))
    metrics = ["mse", keras.metrics.R2Score(name="r2")]
    given = {"numbers": FLAT, "words": tf.constant(WORDS), "kind": RNG.integers(0, 4, (24, 1))}
    given["any"] = tf.constant(WORDS[:, :1])
    return compiled(made, "mae", keras.optimizers.AdamW(0.01), metrics=metrics), (given, TARGET)


class Gated(layers.Layer):
    """A weight and a loss of its own."""

    def __init__(self, units):
        super().__init__()
        self.inner, self.norm = layers.Dense(units, "swish"), layers.LayerNormalization()
        self.gate = self.add_weight(shape=(), initializer="ones", name="gate")

    def call(self, x, training=None):
        y = self.inner(x)
        self.add_loss(0.01 * ops.mean(ops.square(y)))
        return self.norm(x + self.gate * y)


class OfGated(keras.Model):
    """Built by its first call, with a metric that its call updates."""

    def __init__(self):
        super().__init__()
        self.blocks, self.size = [Gated(6), Gated(6)], keras.metrics.Mean("size")
        self.head = layers.Dense(3, kernel_regularizer=keras.regularizers.L1L2(0.001, 0.001))

    def call(self, x, training=None):
        for block in self.blocks:
            x = block(x, training=training)
        self.size.update_state(ops.mean(x))
        return self.head(x)


def gated():
    optimizer = keras.optimizers.Adam(0.01, clipnorm=0.3)
    made = compiled(OfGated(), crossentropy(), optimizer, metrics=["accuracy"], steps_per_execution=2)
    return made, (FLAT, LABELS), {"validation_data": (FLAT[:8], LABELS[:8])}


class OfRagged(keras.Model):
    def __init__(self):
        super().__init__()
        self.table, self.head = layers.Embedding(12, 4), layers.Dense(3)

    def call(self, x):
        padded = x.to_tensor()
        counted = ops.cast(padded > 0, keras.config.floatx())[..., None]
        total = ops.sum(self.table(padded) * counted, axis=1)
        return self.head(total / ops.maximum(ops.sum(counted, axis=1), 1))


def padded_in_the_model():
    made = compiled(OfRagged(), crossentropy(), keras.optimizers.Adagrad(0.1), metrics=["accuracy"])
    return made, (tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(10),)


def windows_of_a_series():
    data = keras.utils.timeseries_dataset_from_array(FLAT, TARGET, sequence_length=4, batch_size=6)
    inner = layers.Conv1D(4, 2, padding="causal"), layers.GRU(4), layers.Dense(2)
    return compiled(stack(*inner, given=(4, 6))), (data,)


class Recalls(keras.metrics.Metric):
    """Gives several numbers, by name."""

    def __init__(self, name="recalls"):
        super().__init__(name=name)
        self.right = self.add_weight(shape=(3,), name="right", initializer="zeros")
        self.all = self.add_weight(shape=(3,), name="all", initializer="zeros")

    def update_state(self, y, prediction, sample_weight=None):
        classes = ops.one_hot(ops.reshape(ops.cast(y, "int32"), (-1,)), 3)
        self.right.assign_add(ops.sum(classes * ops.one_hot(ops.argmax(prediction, -1), 3), 0))
        self.all.assign_add(ops.sum(classes, 0))

    def result(self):
        recalls = self.right / (self.all + 1e-9)
        return {"recall_of_0": recalls[0], "mean_recall": ops.mean(recalls)}


def metric_of_several_numbers():
    made = compiled(stack(layers.Dense(3)), crossentropy(), metrics=[Recalls(), "accuracy"])
    return made, (FLAT, LABELS), {"validation_split": 0.2}


EQUAL = {
    "a metric of several numbers": metric_of_several_numbers,
    "many metrics": many_metrics,
    "segmentation": segmentation,
    "adapted layers": adapted_layers,
    "gated blocks": gated,
    "padded in the model": padded_in_the_model,
    "windows of a series": windows_of_a_series,
}
