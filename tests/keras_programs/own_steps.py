"""Models with a `train_step` of their own, in the style of Keras's guides and examples."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

RNG = np.random.default_rng(0)
FLAT = RNG.normal(size=(24, 6))
TARGET = RNG.normal(size=(24, 2))
LABELS = RNG.integers(0, 3, 24)


def dense(*widths, activation="tanh"):
    hidden = [layers.Dense(width, activation) for width in widths[1:-1]]
    return keras.Sequential([keras.Input([widths[0]]), *hidden, layers.Dense(widths[-1])])


class Guide(keras.Model):
    """The guide's step: forward, loss, gradient, apply, metrics that were compiled."""

    def __init__(self, *widths):
        super().__init__()
        self.net = dense(*(widths or (6, 8, 2)))

    def call(self, x, training=False):
        return self.net(x)

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=prediction, sample_weight=weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, prediction, sample_weight=weight)
        return {metric.name: metric.result() for metric in self.metrics}


def guide():
    made = Guide()
    made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return made, (FLAT, TARGET)


class LowLevel(Guide):
    """A loss and metrics of its own, kept in trackers."""

    def __init__(self):
        super().__init__()
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae = keras.metrics.MeanAbsoluteError(name="mae")

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            loss = ops.mean(keras.losses.mean_squared_error(y, prediction))
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        self.loss_tracker.update_state(loss)
        self.mae.update_state(y, prediction)
        return {"loss": self.loss_tracker.result(), "mae": self.mae.result()}


def low_level():
    made = LowLevel()
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return made, (FLAT, TARGET)


class Counted(Guide):
    """Counts its steps, and keeps an average of its weights by hand."""

    def __init__(self):
        super().__init__()
        self.counter = self.add_weight(shape=(), initializer="zeros", trainable=False, name="counter")
        self.average = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False, name=f"average_{i}")
            for i, v in enumerate(self.net.trainable_variables)
        ]

    def train_step(self, data):
        logs = super().train_step(data)
        self.counter.assign_add(1.0)
        for average, variable in zip(self.average, self.net.trainable_variables, strict=True):
            average.assign(0.9 * average + 0.1 * variable)
        return {**logs, "steps": self.counter.value}


def counted():
    made = Counted()
    made.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return made, (FLAT, TARGET)


class Distiller(keras.Model):
    """A student learns from labels and from a teacher, which is not trained."""

    def __init__(self, temperature=3.0, alpha=0.3):
        super().__init__()
        self.teacher, self.student = dense(6, 16, 3), dense(6, 4, 3)
        self.teacher.trainable = False
        self.temperature, self.alpha = temperature, alpha

    def call(self, x):
        return self.student(x)

    def train_step(self, data):
        x, y = data
        soft = ops.softmax(self.teacher(x, training=False) / self.temperature)
        with tf.GradientTape() as tape:
            prediction = self.student(x, training=True)
            hard = ops.mean(keras.losses.sparse_categorical_crossentropy(y, prediction, from_logits=True))
            matched = keras.losses.KLDivergence()(soft, ops.softmax(prediction / self.temperature))
            loss = self.alpha * hard + (1 - self.alpha) * matched * self.temperature**2
        variables = self.student.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.compute_metrics(x, y, prediction, None)
        logs = {metric.name: metric.result() for metric in self.metrics if metric.name != "loss"}
        return {**logs, "student_loss": hard, "distillation_loss": matched}


def distillation():
    made = Distiller()
    made.compile(keras.optimizers.Adam(0.01), metrics=[keras.metrics.SparseCategoricalAccuracy()])
    return made, (FLAT, LABELS)


class Critics(keras.Model):
    """As a GAN with a gradient penalty: two optimizers one after the other, the critic several times.

    What would be drawn is part of the data, so that the numbers are the same on any number of devices.
    """

    def __init__(self, rounds=2):
        super().__init__()
        self.critic, self.generator, self.rounds = dense(6, 8, 1), dense(4, 8, 6), rounds
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self):
        return [self.d_loss, self.g_loss]

    def penalty(self, real, fake, mix):
        between = mix * real + (1 - mix) * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = self.critic(between, training=True)
        slopes = tape.gradient(score, between)
        return ops.mean((ops.sqrt(ops.sum(slopes**2, axis=1) + 1e-12) - 1) ** 2)

    def train_step(self, data):
        real, noise, mix = data["real"], data["noise"], data["mix"]
        for _ in range(self.rounds):
            with tf.GradientTape() as tape:
                fake = self.generator(noise, training=True)
                cost = ops.mean(self.critic(fake, training=True)) - ops.mean(self.critic(real, training=True))
                d_loss = cost + 10.0 * self.penalty(real, fake, mix)
            variables = self.critic.trainable_variables
            self.d_optimizer.apply(tape.gradient(d_loss, variables), variables)
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.critic(self.generator(noise, training=True), training=True))
        variables = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, variables), variables)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def wgan_gp():
    made = Critics()
    made.compile(keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.02, momentum=0.5))
    noise, mix = RNG.normal(size=(24, 4)), RNG.uniform(size=(24, 1))
    return made, (tf.data.Dataset.from_tensor_slices({"real": FLAT, "noise": noise, "mix": mix}).batch(8),)


class Persistent(Critics):
    """Both gradients from one tape that stays."""

    def train_step(self, data):
        real, noise = data["real"], data["noise"]
        with tf.GradientTape(persistent=True) as tape:
            fake = self.generator(noise, training=True)
            g_loss = -ops.mean(self.critic(fake, training=True))
            d_loss = ops.mean(self.critic(fake) ** 2) + ops.mean((self.critic(real) - 1) ** 2)
        pairs = ((self.critic, self.d_optimizer, d_loss), (self.generator, self.g_optimizer, g_loss))
        gradients = [tape.gradient(loss, net.trainable_variables) for net, _, loss in pairs]
        for (net, optimizer, _), gradient in zip(pairs, gradients, strict=True):
            optimizer.apply(gradient, net.trainable_variables)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def persistent_tape():
    made = Persistent()
    made.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01))
    noise = RNG.normal(size=(24, 4))
    return made, (tf.data.Dataset.from_tensor_slices({"real": FLAT, "noise": noise}).batch(10),)


class Accumulates(Guide):
    """Gradients of several batches, added up by hand, and applied when it is time."""

    def __init__(self, every=2):
        super().__init__()
        self.every = every
        self.sums = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False, name=f"sum_{i}")
            for i, v in enumerate(self.net.trainable_variables)
        ]
        self.batches = self.add_weight(shape=(), initializer="zeros", trainable=False, name="batches")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=prediction)
        variables = self.net.trainable_variables
        for kept, gradient in zip(self.sums, tape.gradient(loss, variables), strict=True):
            kept.assign_add(gradient / self.every)
        self.batches.assign_add(1.0)
        due = ops.cast(ops.equal(self.batches % self.every, 0.0), self.batches.dtype)
        self.optimizer.apply([due * kept for kept in self.sums], variables)
        for kept in self.sums:
            kept.assign(kept * (1 - due))
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, prediction)
        return {metric.name: metric.result() for metric in self.metrics}


def accumulation():
    made = Accumulates()
    made.compile(keras.optimizers.SGD(0.2), "mse", metrics=["mae"])
    return made, (FLAT, TARGET)


class Looks(Guide):
    """Ids that are looked up, by an adaptive optimizer, which sees how often a row comes."""

    def __init__(self):
        super().__init__(4, 2)
        self.table = layers.Embedding(7, 4)

    def call(self, x, training=False):
        return self.net(ops.mean(self.table(x), axis=1))


def looked_up():
    made = Looks()
    made.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return made, (RNG.integers(0, 7, (24, 3)), TARGET)


class Normalised(keras.Sequential):
    """What slices add to the statistics of a batch is differentiated, and 23 examples make uneven slices."""

    def __init__(self):
        norms = [layers.BatchNormalization(synchronized=True) for _ in range(2)]
        inner = layers.Dense(5, "tanh"), norms[0], layers.Dense(4), norms[1], layers.Activation("tanh")
        super().__init__([keras.Input([6]), *inner, layers.Dense(2)])

    def loss_of(self, x, y):
        return ops.mean((self(x, training=True) - y) ** 2)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


class NormalisedTwice(Normalised):
    """One optimizer for the first layers, and another one for the rest."""

    def __init__(self):
        super().__init__()
        self.other = keras.optimizers.Adam(0.01)

    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            loss = self.loss_of(*data)
        first, rest = self.trainable_variables[:4], self.trainable_variables[4:]
        self.optimizer.apply(tape.gradient(loss, first), first)
        self.other.apply(tape.gradient(loss, rest), rest)
        return {"loss": loss}


class Penalised(Normalised):
    """Of a sum over the examples, in the gradient of a mean over them."""

    def target(self, scores):
        return scores

    def loss_of(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            scores = self(x, training=True)
            target = self.target(scores)
        slopes = ops.sqrt(ops.sum(tape.gradient(target, x) ** 2, axis=1) + 0.1)
        return ops.mean((scores - y) ** 2) + ops.mean((slopes - 1) ** 2)


class PenalisedSum(Penalised):
    def target(self, scores):
        return -ops.sum(scores)


class Attacked(Normalised):
    """Examples are moved by the sign of the gradient of a mean."""

    def loss_of(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = super().loss_of(x, y)
        return super().loss_of(x + 0.1 * ops.sign(tape.gradient(loss, x)), y)


class Chained(Normalised):
    """The gradient of the predictions, which another tape goes on with."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            scores = self(x, training=True)
        with tf.GradientTape() as last:
            last.watch(scores)
            loss = ops.mean((scores - y) ** 2)
        weights, slopes = self.trainable_variables, last.gradient(loss, scores)
        self.optimizer.apply(tape.gradient(scores, weights, output_gradients=slopes), weights)
        return {"loss": loss}


def normalised(kind):
    made = kind()
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT[:23], TARGET[:23])


EQUAL = {
    "train_step of the guide": guide,
    "low-level train_step": low_level,
    "counter and average by hand": counted,
    "knowledge distillation": distillation,
    "WGAN-GP": wgan_gp,
    "persistent tape": persistent_tape,
    "accumulation by hand": accumulation,
    "embedding in a train_step": looked_up,
    "synchronised batch norm in a train_step": partial(normalised, Normalised),
    "synchronised batch norm and two optimizers": partial(normalised, NormalisedTwice),
    "synchronised batch norm and a gradient penalty": partial(normalised, Penalised),
    "synchronised batch norm and a penalty of a sum": partial(normalised, PenalisedSum),
    "synchronised batch norm and examples that are moved": partial(normalised, Attacked),
    "synchronised batch norm and a gradient that is given": partial(normalised, Chained),
}
