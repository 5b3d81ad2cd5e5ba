"""A Keras training with all that there is to remember, and a checksum of everything that it ends with."""

import hashlib

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(43, 4)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")
EPOCHS = 6


class Tally(keras.callbacks.Callback):
    """A callback of a user's own: plain attributes, that it counts up in."""

    def __init__(self):
        super().__init__()
        self.heard, self.losses, self.total = [], {}, np.zeros(2)

    def on_epoch_begin(self, epoch, logs=None):
        self.heard.append(("epoch", epoch))

    def on_train_batch_end(self, batch, logs=None):
        self.heard.append(batch)
        self.losses[len(self.heard)] = logs["loss"]
        self.total += [1, logs["loss"]]


class Spoken(keras.callbacks.Callback):
    """A callback that says itself what to keep."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def on_train_batch_end(self, batch, logs=None):
        self.seen.add((batch, round(logs["loss"], 12)))

    def get_state(self):
        return sorted(self.seen)

    def set_state(self, state):
        self.seen = set(state)


def callbacks():
    return [
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.2),
        keras.callbacks.EarlyStopping(
            monitor="val_loss", patience=3, min_delta=0.01, restore_best_weights=True
        ),
        Tally(),
        Spoken(),
    ]


class Plain(keras.Model):
    """Keras's own step, with dropout, averages of batch normalisation, a metric that remembers."""

    def __init__(self):
        super().__init__()
        layers = keras.layers
        self.net = keras.Sequential(
            [layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(2)]
        )

    def call(self, x, training=False):
        return self.net(x, training=training)


class Own(Plain):
    """The same with a step of its own, and a counter that it assigns to."""

    def __init__(self):
        super().__init__()
        self.counter = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.counter.assign_add(1)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, self(x, training=False))
        return {metric.name: metric.result() for metric in self.metrics}


MODELS = {"plain": Plain, "own": Own}


def shuffled():
    """Shuffled without a seed of its own, as most programs do it."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(30).batch(10), None


DATA = {"arrays": lambda: (X, Y), "dataset": shuffled}


def train(
    folder, *, model="plain", data="arrays", at_batch=lambda batch: None, every=3, devices=2, **options
):
    """What the training ends with, as a text that is equal only if everything is."""
    keras.utils.clear_session()  # names are as in a new process
    keras.utils.set_random_seed(3)
    made = MODELS[model]()
    optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(optimizer, loss, metrics=["accuracy"])
    x, y = DATA[data]()
    own = callbacks()
    hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: at_batch(batch))
    history = cn.fit(
        made,
        x,
        y,
        **{"batch_size": 10} if y is not None else {},
        **{"epochs": EPOCHS, "verbose": 0, "prove": False, "devices": 2, **options},
        validation_data=(X[:20], Y[:20]),
        callbacks=[*own, hook],
        checkpoint=cn.Checkpoint(folder, every=every) if folder else None,
    )
    found = hashlib.sha256()
    variables = [*made.variables, *optimizer.variables, *(v for m in made.metrics for v in m.variables)]
    for variable in variables:
        found.update(variable.path.encode() + variable.numpy().tobytes())
    plateau, stopping, tally, spoken = own
    states = [
        history.history,
        history.epoch,
        (plateau.best, plateau.wait, plateau.cooldown_counter),
        (stopping.best, stopping.wait, stopping.stopped_epoch, stopping.best_epoch),
        [weights.tobytes() for weights in stopping.best_weights],
        (tally.heard, tally.losses, tally.total.tobytes(), sorted(spoken.seen)),
    ]
    found.update(repr(states).encode())
    return f"{found.hexdigest()} after {len(tally.losses)} batches, {len(history.epoch)} epochs"
