"""A `train_step` of its own whose loss is a sum over the examples, or has a value for each of them.

Of such a loss a tape gives the gradient of the sum: that of a batch is the sum of what its slices give.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import Guide
from keras_programs.plain_steps import FLAT, TARGET


class ByHand(Guide):
    """Differentiates a loss of the errors, and makes something of the gradients."""

    def __init__(self, loss, made=lambda gradients, rows: gradients, scaled=False):
        super().__init__()
        self.loss_of, self.made, self.scaled = loss, made, scaled

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of((self(x, training=True) - y) ** 2)
            target = self.optimizer.scale_loss(loss) if self.scaled else loss
        gradients = tape.gradient(target, self.trainable_variables)
        gradients = self.made(gradients, tf.cast(tf.shape(x)[0], loss.dtype))
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": ops.mean(loss) if loss.shape.rank else loss}


def by_hand(*options, **more):
    made = ByHand(*options, **more)
    optimizer = keras.optimizers.SGD(0.01)
    made.compile(keras.optimizers.LossScaleOptimizer(optimizer, 64.0) if made.scaled else optimizer)
    return made, (FLAT, TARGET)


def of_examples(errors):
    return ops.mean(errors, axis=-1)


def divided(gradients, rows):
    return [gradient / rows for gradient in gradients]


def clipped(gradients, rows):
    return tf.clip_by_global_norm(gradients, 0.1)[0]


class Siamese(keras.Model):
    """Triplets: a distance for each of them, of which a tape adds up the hinges."""

    def __init__(self):
        super().__init__()
        self.embedding = keras.Sequential([layers.Dense(8, "relu"), layers.Dense(4)])
        self.tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracker]

    def hinges(self, triplets):
        anchor, near, far = (self.embedding(each) for each in triplets)
        return tf.maximum(ops.sum((anchor - near) ** 2, -1) - ops.sum((anchor - far) ** 2, -1) + 0.5, 0.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.hinges(data)
        gradients = tape.gradient(loss, self.embedding.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.embedding.trainable_weights, strict=True))
        return self.told(loss)

    def test_step(self, data):
        return self.told(self.hinges(data))

    def told(self, loss):
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


def siamese():
    made, rng = Siamese(), np.random.default_rng(0)
    made.compile(keras.optimizers.Adam(0.001), weighted_metrics=[])
    triplets = tuple(rng.normal(size=(34, 6)) for _ in range(3))
    every = tf.data.Dataset.from_tensor_slices(triplets).batch(10)
    return made, (every,), {"validation_data": every}


class MaskedLanguage(keras.Model):
    """A loss for each token, zero where none was hidden, and a metric that is given all of them."""

    def __init__(self):
        super().__init__()
        self.words, self.tokens = layers.Embedding(7, 4), layers.Dense(7)
        self.loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
        self.tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        return self.tokens(self.words(x))

    def train_step(self, data):
        x, y, hidden = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True), sample_weight=hidden)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.tracker.update_state(loss, sample_weight=hidden)
        return {"loss": self.tracker.result()}


def masked_language():
    made, rng = MaskedLanguage(), np.random.default_rng(0)
    made.compile(keras.optimizers.Adam(0.01))
    given = rng.integers(0, 7, (24, 5)), rng.integers(0, 7, (24, 5)), rng.uniform(size=(24, 5)) < 0.4
    return made, given


class Adversary(Guide):
    """Trains against inputs that are moved along their gradient, by as much as that is."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = ops.mean((self(x, training=True) - y) ** 2)
        moved = x + self.step(tape.gradient(loss, x))
        with tf.GradientTape() as tape:
            loss = ops.mean((self(moved, training=True) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}

    def step(self, gradients):
        return 3.0 * gradients


class AdversaryBySize(Adversary):
    def step(self, gradients):
        return gradients * ops.cast(ops.shape(gradients)[0], gradients.dtype)


class ByParts(keras.Model):
    """The chain rule by hand: the gradient of what is in the middle is given to a second tape."""

    def __init__(self):
        super().__init__()
        self.first, self.last = layers.Dense(5, "tanh"), layers.Dense(2)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            middle = self.first(x)
        with tf.GradientTape() as second:
            second.watch(middle)
            loss = ops.mean((self.last(middle) - y) ** 2)
        of_middle, of_last = second.gradient(loss, [middle, self.last.trainable_variables])
        of_first = tape.gradient(middle, self.first.trainable_variables, of_middle)
        variables = self.first.trainable_variables + self.last.trainable_variables
        self.optimizer.apply(of_first + of_last, variables)
        return {"loss": loss}


def adversary(kind):
    made = kind()
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT, TARGET)


EQUAL = {
    "inputs that are moved along their gradient": lambda: adversary(Adversary),
    "inputs that are moved by gradients times their number": lambda: adversary(AdversaryBySize),
    "the chain rule by hand": lambda: adversary(ByParts),
    "a sum in a train_step": lambda: by_hand(ops.sum),
    "a loss for each example in a train_step": lambda: by_hand(of_examples),
    "a loss for each number in a train_step": lambda: by_hand(lambda errors: errors),
    "a scaled loss for each example": lambda: by_hand(of_examples, scaled=True),
    "gradients that are divided by hand": lambda: by_hand(of_examples, divided),
    "gradients of a sum that are clipped by hand": lambda: by_hand(of_examples, clipped),
    "triplets in a train_step": siamese,
    "a loss for each token in a train_step": masked_language,
}
