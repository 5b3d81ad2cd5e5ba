"""A `train_step` around Keras's own, or one that leaves the loss to `compute_loss`: losses of all kinds."""

from functools import partial

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, TARGET
from keras_programs.plain_steps import IDS, TAGS, compiled, crossentropy

RNG = np.random.default_rng(17)
WORDS = tf.ragged.constant([list(RNG.integers(1, 9, RNG.integers(1, 6))) for _ in range(24)], dtype="int64")
FEW = tf.sparse.from_dense(RNG.normal(size=(24, 5)) * (RNG.uniform(size=(24, 5)) < 0.3))


class Wrapped(keras.Sequential):
    """Changes what it is given, lets Keras train, and tells more of it."""

    def train_step(self, data):
        x, y = data
        if x.dtype.is_floating:
            x = 0.9 * x
        logs = super().train_step((x, y))
        return {**logs, "rate": ops.convert_to_tensor(self.optimizer.learning_rate)}


class ByHand(keras.Sequential):
    """Its own tape around `compute_loss`."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=found)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.metrics[0].update_state(loss, sample_weight=ops.shape(x)[0])
        return self.compute_metrics(x, y, found)


def tagger(kind=Wrapped):
    """A mask at the output, for the loss and for a metric."""
    inner = layers.Embedding(9, 4, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(3)
    made = kind([keras.Input([7], dtype="int64"), *inner])
    return compiled(made, crossentropy(), metrics=["accuracy"]), (IDS, TAGS)


def regression(loss, kind=Wrapped, *inner, **options):
    made = kind([keras.Input([6]), layers.Dense(4, "tanh"), *inner, layers.Dense(2)])
    return compiled(made, loss, keras.optimizers.SGD(0.01), **options), (FLAT, TARGET)


def ignored():
    made = Wrapped([keras.Input([6]), layers.Dense(3)])
    return compiled(made, crossentropy(ignore_class=0)), (FLAT, TAGS[:, 0])


class Adds(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.sum(x**2))
        return x


def pairs(y, found):
    """Compares every example with every other; no name tells."""
    return ops.mean((found @ ops.transpose(found) - y @ ops.transpose(y)) ** 2)


class Quotient(ByHand):
    """Sum over sum of a mask that is made of the inputs."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        counted = ops.cast(x[:, :1] > 0, x.dtype)
        return ops.sum(counted * (y - y_pred) ** 2) / ops.sum(counted)


class OfLengths(keras.metrics.Metric):
    """Is given what is not dense."""

    def __init__(self):
        super().__init__(name="lengths")
        self.longest = self.add_variable((), "zeros", name="longest")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, words, few, sample_weight=None):
        self.longest.assign(ops.maximum(self.longest, ops.cast(words.bounding_shape()[1], self.dtype)))
        sums = ops.cast(tf.reduce_sum(words, axis=1), self.dtype) + ops.sum(tf.sparse.to_dense(few), axis=1)
        self.total.assign_add(sums[0] + 2 * sums[-1] + ops.cast(few.indices[-1][0], self.dtype))

    def result(self):
        return self.longest + self.total


class NotDense(keras.Sequential):
    def __init__(self, given):
        super().__init__(given)
        self.lengths = OfLengths()

    def train_step(self, data):
        (x, words, few), y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.lengths.update_state(words, few)
        return {"loss": loss, "lengths": self.lengths.result()}


def not_dense():
    made = NotDense([keras.Input([6]), layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.1))
    return made, (tf.data.Dataset.from_tensor_slices(((FLAT, WORDS, FEW), TARGET)).batch(10),)


class Sharpness(keras.Model):
    """Gradients are those where the loss is worst nearby."""

    def __init__(self):
        super().__init__()
        self.answer = layers.Dense(2)

    def call(self, x, training=False):
        return self.answer(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        back = self.climbed(variables, tape.gradient(loss, variables))
        with tf.GradientTape() as tape:
            worst = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(worst, variables)
        back()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}

    def climbed(self, variables, gradients):
        norm = tf.linalg.global_norm(gradients)
        steps = [0.05 * g / (norm + 1e-12) for g in gradients]
        for variable, step in zip(variables, steps, strict=True):
            variable.assign_add(step)

        def back():
            for variable, step in zip(variables, steps, strict=True):
                variable.assign_sub(step)

        return back


class Climbs(keras.optimizers.SGD):
    """Goes up, a step of one length."""

    def apply_gradients(self, grads_and_vars):
        pairs = list(grads_and_vars)
        norm = tf.linalg.global_norm([g for g, _ in pairs]) + 1e-12
        return super().apply_gradients([(-g / norm, v) for g, v in pairs])


class SharpnessByOptimizer(Sharpness):
    def __init__(self):
        super().__init__()
        self.up = Climbs(0.05)

    def climbed(self, variables, gradients):
        before = [tf.identity(variable) for variable in variables]
        self.up.apply_gradients(zip(gradients, variables, strict=True))

        def back():
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

        return back


def sharpness(kind=SharpnessByOptimizer):
    made = kind()
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made, (FLAT, TARGET)


class Clips(ByHand):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        clipped, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.1)
        self.optimizer.apply(clipped, self.trainable_variables)
        return self.told(loss, norm)

    def told(self, loss, norm):
        return {"loss": loss}


class ClipsAndTells(Clips):
    def told(self, loss, norm):
        return {"loss": loss, "norm": norm}


def clipped_by_hand(kind=Clips, *inner):
    made = kind([keras.Input([6]), *inner, layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made, (FLAT, TARGET)


class Accumulates(keras.Model):
    """Adds gradients up, and applies them in a branch at every second batch."""

    def __init__(self):
        super().__init__()
        self.answer = layers.Dense(2)
        self.steps = tf.Variable(0, trainable=False)

    def build(self, shape):
        self.answer.build(shape)
        self.sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in self.answer.trainable_variables]

    def call(self, x, training=False):
        return self.answer(x)

    def train_step(self, data):
        x, y = data
        self.steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.assign_add(gradient / 2)
        tf.cond(tf.equal(self.steps, 2), self.apply_sums, lambda: None)
        return self.compute_metrics(x, y, self(x, training=False))

    def apply_sums(self):
        self.optimizer.apply_gradients(zip(self.sums, self.trainable_variables, strict=True))
        self.steps.assign(0)
        for total in self.sums:
            total.assign(tf.zeros_like(total))


def accumulated_in_a_branch():
    made = Accumulates()
    made.build((None, 6))
    made.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
    made.optimizer.build(made.trainable_variables)
    return made, (FLAT, TARGET)


EQUAL = {
    "accumulation that is applied in a branch": accumulated_in_a_branch,
    "sharpness by hand": partial(sharpness, Sharpness),
    "clipping by hand": clipped_by_hand,
    "clipping by hand what a loop reads": lambda: clipped_by_hand(
        Clips, layers.Reshape((3, 2)), layers.GRU(4)
    ),
    "clipping by hand, and told": partial(clipped_by_hand, ClipsAndTells),
    "sharpness, climbed by an optimizer": sharpness,
    "a step around Keras's, masked": tagger,
    "a step around compute_loss, masked": partial(tagger, ByHand),
    "a step around Keras's, that sums": partial(
        regression, keras.losses.MeanSquaredError(reduction="sum"), metrics=["mae"]
    ),
    "a step around Keras's, without a reduction": partial(
        regression, keras.losses.MeanSquaredError(reduction="none")
    ),
    "a step around Keras's, with ignore_class": ignored,
    "a step around Keras's, with sums of a layer": lambda: regression("mse", Wrapped, Adds()),
    "a step around compute_loss, with sums of a layer": lambda: regression("mse", ByHand, Adds()),
    "a step around compute_loss, of pairs": partial(regression, pairs, ByHand),
    "a step around compute_loss, of a quotient": partial(regression, None, Quotient),
    "metrics of what is not dense in a train_step": not_dense,
}
