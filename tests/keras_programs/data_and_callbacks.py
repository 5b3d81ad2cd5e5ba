"""Data of many forms, options of `fit`, and callbacks that look, change and save."""

import itertools
import tempfile
from collections import namedtuple
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import scipy.sparse
import tensorflow as tf
from keras import layers, ops
from keras_programs.plain_steps import compiled, crossentropy, stack

RNG = np.random.default_rng(43)
FLAT, TARGET = RNG.normal(size=(24, 6)), RNG.normal(size=(24, 2))
LABELS = RNG.integers(0, 3, 24)
PIXELS = RNG.integers(0, 256, (24, 8, 8, 1)).astype("uint8")
MANY, MANY_TARGETS = RNG.normal(size=(57, 6)), RNG.normal(size=(57, 2))


def regression(optimizer=None, **options):
    made = stack(layers.Dense(8, "tanh"), layers.Dense(2))
    return compiled(made, optimizer=optimizer or keras.optimizers.Adam(0.02), **options)


class Meddles(keras.callbacks.Callback):
    """Changes rates, weights and the end of the training, and asks the model in the middle of it."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 * (1 + batch)

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            kernel = self.model.layers[0].kernel
            kernel.assign(0.9 * kernel)
            self.seen.append(self.model.predict(FLAT[:5], verbose=0).sum())
            self.seen.append(self.model.evaluate(FLAT[:7], TARGET[:7], verbose=0, return_dict=True)["mae"])

    def on_epoch_end(self, epoch, logs):
        logs["seen"] = float(np.sum(self.seen))
        logs["rate"] = float(self.model.optimizer.learning_rate)
        logs["norm"] = float(sum(np.abs(w).sum() for w in self.model.get_weights()))


class Ends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = int(self.model.optimizer.iterations) == 4


def callbacks_that_meddle():
    return regression(metrics=["mae"]), (FLAT, TARGET), {"callbacks": [Meddles()]}


def a_callback_that_ends_it():
    return regression(), (FLAT, TARGET), {"callbacks": [Ends()], "validation_data": (FLAT[:5], TARGET[:5])}


def callbacks_of_keras():
    folder = Path(tempfile.mkdtemp())
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=0, min_delta=10.0, cooldown=0),
        keras.callbacks.ModelCheckpoint(folder / "best.keras", monitor="val_mae", save_best_only=True),
        keras.callbacks.ModelCheckpoint(
            folder / "{epoch}_{batch}.weights.h5", save_weights_only=True, save_freq=2
        ),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.TensorBoard(
            folder / "board", histogram_freq=1, update_freq="batch", write_graph=True
        ),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(twice=2 * logs["loss"])),
        keras.callbacks.BackupAndRestore(folder / "backup", save_freq=2),
    ]
    return regression(metrics=["mae"]), (FLAT, TARGET), {"callbacks": callbacks, "validation_split": 0.3}


def swapped_averages():
    optimizer = keras.optimizers.AdamW(0.05, use_ema=True, ema_momentum=0.6)
    callbacks = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True), Meddles()]
    return (
        regression(optimizer, metrics=["mae"]),
        (FLAT, TARGET),
        {"callbacks": callbacks, "validation_split": 0.3},
    )


def rates_by_epoch():
    def rate(epoch, before):
        return before if epoch < 1 else before * np.exp(-0.1)

    callbacks = [
        keras.callbacks.LearningRateScheduler(rate),
        keras.callbacks.EarlyStopping("loss", patience=0, mode="max"),
    ]
    return (
        regression(keras.optimizers.Nadam(0.05)),
        (FLAT, TARGET),
        {"callbacks": callbacks, "epochs": 5, "initial_epoch": 2},
    )


def fewer_steps_than_data():
    """An epoch goes on where the last one has ended."""
    data = tf.data.Dataset.from_tensor_slices((MANY, MANY_TARGETS)).batch(10).repeat()
    return regression(steps_per_execution=2), (data,), {"steps_per_epoch": 4, "epochs": 3}


def fewer_steps_than_arrays():
    return regression(), (MANY, MANY_TARGETS), {"steps_per_epoch": 2, "epochs": 3}


def shuffled():
    return regression(), (MANY, MANY_TARGETS), {"shuffle": True}


def shuffled_by_batch():
    return regression(), (MANY, MANY_TARGETS), {"shuffle": "batch"}


class Workers(keras.utils.PyDataset):
    """Batches of dicts, with weights, by threads; in another order after every epoch."""

    def __init__(self):
        super().__init__(workers=2, use_multiprocessing=False, max_queue_size=3)
        self.order = np.arange(57)

    def __len__(self):
        return 6

    def __getitem__(self, number):
        rows = self.order[10 * number : 10 * number + 10]
        return {"a": MANY[rows, :2], "b": MANY[rows, 2:]}, MANY_TARGETS[rows], np.abs(MANY[rows, 0])

    def on_epoch_end(self):
        self.order = self.order[::-1]


def of_dicts(**options):
    a, b = keras.Input([2], name="a"), keras.Input([4], name="b")
    made = keras.Model(
        {"b": b, "a": a}, layers.Dense(2)(layers.Dense(5, "tanh")(layers.Concatenate()([a, b])))
    )
    return compiled(made, weighted_metrics=["mae"], **options)


def batches_by_workers():
    return of_dicts(), (Workers(),), {"validation_data": Workers()}


def endless_dicts():
    def batches():
        for start in itertools.cycle((0, 10, 20, 31)):
            rows = slice(start, start + 10)
            yield {"b": MANY[rows, 2:].astype("float32"), "a": MANY[rows, :2]}, MANY_TARGETS[rows]

    options = {"steps_per_epoch": 3, "validation_data": batches(), "validation_steps": 2}
    return of_dicts(), (batches(),), options


def tables():
    frame = pd.DataFrame(MANY, columns=list("abcdef"))
    labels = pd.Series((MANY[:, 0] > 0).astype("int64"))
    made = compiled(stack(layers.Dense(4, "relu"), layers.Dense(2)), crossentropy(), metrics=["accuracy"])
    return made, (frame, labels, pd.Series(np.abs(MANY[:, 1]))), {"validation_split": 0.25}


def columns():
    """A dict of columns, as from a table, with a class for each."""
    columns = {name: MANY[:, [i]] for i, name in enumerate("abcdef")}
    inputs = {name: keras.Input([1], name=name) for name in columns}
    made = keras.Model(
        inputs, layers.Dense(3)(layers.Dense(4, "relu")(layers.Concatenate()(list(inputs.values()))))
    )
    labels = RNG.integers(0, 3, 57)
    made = compiled(made, crossentropy(), metrics=["accuracy"])
    return made, (columns, labels), {"class_weight": {0: 2.0, 1: 0.5, 2: 1.0}, "validation_split": 0.2}


def few_numbers():
    """Of SciPy, for a layer that takes sparse ones."""
    given = keras.Input([30], sparse=True)
    made = keras.Model(given, layers.Dense(2)(layers.Dense(4, "tanh")(given)))
    x = scipy.sparse.random(24, 30, 0.1, "csr", random_state=3)
    return compiled(made), (x, TARGET)


def pixels():
    inner = (
        layers.Rescaling(1 / 127.5, -1),
        layers.Resizing(6, 6),
        layers.CenterCrop(5, 5),
        layers.Flatten(),
        layers.Dense(1),
    )
    made = stack(*inner, given=(8, 8, 1), dtype="uint8")
    made = compiled(
        made,
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    return made, (PIXELS, LABELS > 1)


def one_at_a_time():
    return regression(), (tf.data.Dataset.from_tensor_slices((FLAT[:5], TARGET[:5])).batch(1),)


def two_at_a_time():
    return regression(metrics=["mae"]), (tf.data.Dataset.from_tensor_slices((FLAT[:7], TARGET[:7])).batch(2),)


def unknown_shapes():
    """A generator of which nothing but dtypes is said."""

    def batches():
        for start in (0, 10, 20):
            yield MANY[start : start + 10], MANY_TARGETS[start : start + 10]

    data = tf.data.Dataset.from_generator(batches, (tf.float64, tf.float32))
    data = data.map(lambda x, y: (tf.ensure_shape(x, [None, 6]), tf.ensure_shape(y, [None, 2])))
    return regression(steps_per_execution=2), (data.apply(tf.data.experimental.assert_cardinality(3)),)


Pair = namedtuple("Pair", ["one", "other"])


class OfPairs(keras.Model):
    """Takes and gives named tuples."""

    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(2)

    def call(self, x):
        return Pair(self.inner(x.one), ops.tanh(self.inner(x.other)))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(y_pred.one - y)) + ops.mean(ops.square(y_pred.other - y))


def named_tuples():
    made = OfPairs()
    made.compile(keras.optimizers.SGD(0.1))
    data = tf.data.Dataset.from_tensor_slices((Pair(FLAT[:, :3], FLAT[:, 3:]), TARGET)).batch(10)
    return made, (data,)


def weights_everywhere():
    options = {
        "validation_data": (FLAT[:9], TARGET[:9], RNG.uniform(size=9)),
        "validation_batch_size": 4,
        "validation_steps": 2,
        "epochs": 3,
        "validation_freq": [1, 3],
    }
    return regression(weighted_metrics=["mae"]), (FLAT, TARGET, RNG.uniform(size=24)), options


class Windows(keras.callbacks.Callback):
    """Lengthens a window after each epoch, in a variable."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.window.assign_add(1)


class Grows(keras.Model):
    def __init__(self):
        super().__init__()
        self.answer = layers.Dense(2)
        self.window = self.add_weight(
            shape=(), dtype="int32", initializer="ones", trainable=False, name="window"
        )

    def call(self, x):
        return self.answer(x * ops.cast(ops.arange(6, dtype="int32") < self.window, x.dtype))


def a_window_that_grows():
    return compiled(Grows()), (FLAT, TARGET), {"callbacks": [Windows()], "epochs": 3}


EQUAL = {
    "callbacks that meddle": callbacks_that_meddle,
    "a callback that ends it": a_callback_that_ends_it,
    "callbacks of Keras": callbacks_of_keras,
    "swapped averages": swapped_averages,
    "rates by epoch, begun late": rates_by_epoch,
    "fewer steps than data": fewer_steps_than_data,
    "fewer steps than arrays": fewer_steps_than_arrays,
    "shuffled": shuffled,
    "shuffled by batch": shuffled_by_batch,
    "batches by workers": batches_by_workers,
    "endless dicts": endless_dicts,
    "tables of Pandas": tables,
    "columns": columns,
    "sparse rows of SciPy": few_numbers,
    "pixels": pixels,
    "one at a time": one_at_a_time,
    "two at a time": two_at_a_time,
    "unknown shapes": unknown_shapes,
    "named tuples": named_tuples,
    "weights everywhere": weights_everywhere,
    "a window that grows": a_window_that_grows,
}
