"""Programs that use what few do: tables at fixed rows, numbers of examples, data from Python."""

import itertools

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, LABELS, TARGET, Guide
from keras_programs.plain_steps import compiled, stack

RNG = np.random.default_rng(5)
TOKENS = RNG.integers(1, 9, (24, 10))


class Positions(keras.Model):
    """A table of tokens, and one of positions, which every example reads at the same rows."""

    def __init__(self, length=None):
        super().__init__()
        self.length = length
        self.tokens, self.places, self.answer = (
            layers.Embedding(9, 4),
            layers.Embedding(10, 4),
            layers.Dense(9),
        )
        self.right = keras.metrics.SparseCategoricalAccuracy(name="right")

    def call(self, x, training=False):
        places = ops.arange(self.length or ops.shape(x)[1])
        return self.answer(ops.tanh(self.tokens(x) + self.places(places)))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            each = keras.losses.sparse_categorical_crossentropy(x, found, from_logits=True)
            loss = ops.mean(ops.mean(each, axis=1))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        # One for each token.
        self.right.update_state(tf.reshape(x, [-1]), tf.reshape(found, [-1, 9]))
        return {"loss": loss, "right": self.right.result()}


def positions_in_a_step():
    """As many positions as a batch has examples, and two slices of it together."""
    made = Positions(10)
    made.compile(keras.optimizers.Adam(0.01))
    return made, (tf.data.Dataset.from_tensor_slices(TOKENS).batch(10),)


def widths_in_a_step():
    made = Positions()
    made.compile(keras.optimizers.Adam(0.01))
    widths = [TOKENS[:10], TOKENS[10:20, :7], TOKENS[20:, :9]]
    kind = tf.TensorSpec([None, None], "int64")
    data = tf.data.Dataset.from_generator(lambda: iter(widths), output_signature=kind)
    return made, (data.apply(tf.data.experimental.assert_cardinality(3)),)


class Two(keras.Model):
    """Several outputs, whose losses Keras keeps one by one, in a step of its own."""

    def __init__(self):
        super().__init__()
        self.inner, self.a, self.b = layers.Dense(5, "tanh"), layers.Dense(2), layers.Dense(2)

    def call(self, x, training=False):
        inner = self.inner(x)
        return {"a": self.a(inner), "b": self.b(inner)}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            found = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=found)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.metrics[0].update_state(loss, sample_weight=ops.shape(x)[0])
        return self.get_metrics_result()


def several_outputs_in_a_step():
    made = Two()
    made.compile(keras.optimizers.SGD(0.1), {"a": "mse", "b": "mae"}, loss_weights={"a": 1.0, "b": 0.5})
    return made, (FLAT, {"a": TARGET, "b": TARGET**2})


class Decorated(Guide):
    @tf.function
    def train_step(self, data):
        return super().train_step(data)


def decorated():
    made = Decorated()
    made.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return made, (FLAT, TARGET)


class Centralised(keras.optimizers.SGD):
    """Makes something of gradients before it applies them, and not only of each by itself."""

    def apply_gradients(self, grads_and_vars):
        pairs = [(g - ops.mean(g), v) for g, v in grads_and_vars]
        norm = ops.sqrt(sum(ops.sum(g**2) for g, _ in pairs))
        return super().apply_gradients([(g / (1 + norm), v) for g, v in pairs])


def optimizer_of_its_own():
    return compiled(stack(layers.Dense(4, "tanh"), layers.Dense(2)), optimizer=Centralised(0.5)), (
        FLAT,
        TARGET,
    )


def optimizer_of_its_own_in_a_step():
    made = LowLevel()
    made.compile(Centralised(0.5))
    return made, (FLAT, TARGET)


class LowLevel(Guide):
    """Counts its steps in a metric, and weighs a mean by the number of examples."""

    def __init__(self):
        super().__init__()
        self.steps, self.mean = keras.metrics.Sum(name="steps"), keras.metrics.Mean(name="mean")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.steps.update_state(1)
        self.mean.update_state(loss, sample_weight=ops.shape(x)[0])
        return {"steps": self.steps.result(), "mean": self.mean.result()}


class Weighed(keras.Sequential):
    """A metric that its loss updates, by the number of examples."""

    def __init__(self, given):
        super().__init__(given)
        self.weighed = keras.metrics.Mean(name="weighed")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = ops.mean((y - y_pred) ** 2)
        self.weighed.update_state(loss, sample_weight=ops.shape(x)[0])
        return loss


def weighed_by_examples():
    made = Weighed([keras.Input([6]), layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT, TARGET)


class Warmed(layers.Layer):
    """A divergence, summed over the batch, that counts for nothing at first."""

    def build(self, shape):
        self.beta = self.add_weight(shape=(), initializer="zeros", trainable=False, name="beta")

    def call(self, x):
        self.add_loss(self.beta * ops.sum(x**2))
        return x


def warmed_up():
    made = compiled(stack(layers.Dense(4), Warmed(name="warmed"), layers.Dense(2)))
    raised = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: made.get_layer("warmed").beta.assign(0.01 * epoch)
    )
    return made, (FLAT, TARGET), {"callbacks": [raised]}


def generator_with_nothing():
    def batches():
        for start in itertools.cycle((0, 10)):
            yield FLAT[start : start + 10], TARGET[start : start + 10], None

    return compiled(stack(layers.Dense(2))), (batches(),), {"steps_per_epoch": 2}


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, number):
        rows = slice(10 * number, 10 * number + 10)
        return FLAT[rows], TARGET[rows]


def batches_of_python():
    return compiled(stack(layers.Dense(2))), (Batches(),)


def validated_at_times():
    options = {"validation_data": (FLAT[:7], TARGET[:7]), "validation_freq": 2}
    return compiled(stack(layers.Dense(2))), (FLAT, TARGET), options


def averages_that_overwrite():
    optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2)
    return compiled(stack(layers.Dense(4, "tanh"), layers.Dense(2)), optimizer=optimizer), (FLAT, TARGET)


EQUAL = {
    "positions in a train_step": positions_in_a_step,
    "widths in a train_step": widths_in_a_step,
    "several outputs in a train_step": several_outputs_in_a_step,
    "a train_step that is a tf.function": decorated,
    "apply_gradients of its own": optimizer_of_its_own,
    "apply_gradients of its own in a train_step": optimizer_of_its_own_in_a_step,
    "a metric weighed by examples": weighed_by_examples,
    "a warmed-up sum": warmed_up,
    "a generator with None": generator_with_nothing,
    "PyDataset": batches_of_python,
    "validation_freq": validated_at_times,
    "ema_overwrite_frequency": averages_that_overwrite,
}


class SimCLR(Guide):
    """Two views of every example, with numbers of their own, held against those of all others."""

    def __init__(self):
        super().__init__()
        self.augment = keras.Sequential([layers.GaussianNoise(0.1, seed=1), layers.Dropout(0.2, seed=2)])

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            one, other = (ops.normalize(self.net(self.augment(x, training=True)), axis=1) for _ in range(2))
            likeness = ops.matmul(one, ops.transpose(other)) / 0.1
            loss = ops.mean(
                keras.losses.sparse_categorical_crossentropy(
                    ops.arange(ops.shape(x)[0]), likeness, from_logits=True
                )
            )
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def views():
    made = SimCLR()
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT, LABELS)


class MaskedQuotient(Guide):
    """Sum over sum of a mask, behind dropout."""

    def __init__(self):
        super().__init__()
        self.drop = layers.Dropout(0.3, seed=3)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            counted = ops.cast(x[:, :1] > 0, x.dtype)
            wrong = (self.net(self.drop(x, training=True)) - y) ** 2
            loss = ops.sum(counted * wrong) / ops.sum(counted)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def masked_quotient():
    made = MaskedQuotient()
    made.compile(keras.optimizers.SGD(0.1))
    return made, (FLAT, TARGET)


class Counts(layers.Layer):
    """Counts its examples in a whole number, in training, beside dropout."""

    def build(self, shape):
        self.seen = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, name="seen"
        )

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(ops.shape(x)[0])
        return x


def counted_in_a_layer():
    return compiled(stack(Counts(name="counts"), layers.Dropout(0.5), layers.Dense(2))), (FLAT, TARGET)


def remembers():
    made = keras.Sequential(
        [keras.Input(batch_shape=(8, 3, 2)), layers.LSTM(4, stateful=True), layers.Dense(2)]
    )
    return compiled(made), (FLAT.reshape(24, 3, 2), TARGET)


REFUSED = {
    "SimCLR with augmentation": (views, "train_step='SimCLR'.*override compute_loss"),
    "masked quotient behind dropout": (masked_quotient, "train_step='MaskedQuotient'.*not the mean"),
    "examples counted in a layer": (counted_in_a_layer, "seen': is given what is no mean"),
    "stateful LSTM": (remembers, "has stateful=True|does not take a slice"),
}
