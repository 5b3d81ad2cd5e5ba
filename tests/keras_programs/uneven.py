"""Programs whose batches, or what is made of them, are no rows of examples; and losses that are no number."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.own_steps import FLAT, TARGET
from keras_programs.plain_steps import compiled, crossentropy, stack

RNG = np.random.default_rng(13)
TEXTS = np.array(["a b c d", "b", "c d", "d a a", "a", "b b", "a b", "c"])


def one_for_each_example():
    made = stack(layers.Dense(4, "tanh"), layers.Dense(2))
    return compiled(made, keras.losses.MeanSquaredError(reduction="none")), (FLAT, TARGET)


class LossesOfTokens(keras.Sequential):
    """Keras differentiates their sum, and tells their mean."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.square(y - y_pred)


def one_for_each_token():
    made = LossesOfTokens([keras.Input([6]), layers.Dense(4, "tanh"), layers.Dense(2)])
    return compiled(made, None, keras.optimizers.SGD(0.01)), (FLAT, TARGET)


EQUAL = {
    "a loss without a reduction": one_for_each_example,
    "a compute_loss for each token": one_for_each_token,
}


def tagger():
    """A text is padded to the longest of its slice, and its tags to that of the batch."""
    words = layers.TextVectorization(vocabulary=list("abcd"))
    made = stack(words, layers.Embedding(10, 4), layers.Dense(3), given=(), dtype="string")
    data = tf.data.Dataset.from_tensor_slices((TEXTS, RNG.integers(0, 3, (8, 4))))
    return compiled(made, crossentropy()), (data.batch(8),)


class Likeness(keras.Model):
    def __init__(self):
        super().__init__()
        self.codes = layers.Dense(4)

    def call(self, x):
        codes = self.codes(x)
        return ops.matmul(codes, ops.transpose(codes))


def likeness():
    made = Likeness()
    made.compile("sgd", lambda y, found: ops.mean(found**2))
    return made, (tf.data.Dataset.from_tensor_slices((FLAT[:9], TARGET[:9])).batch(9),)


class LooksUp(keras.Model):
    """Its table has as many rows as the batch."""

    def __init__(self):
        super().__init__()
        self.answer = layers.Dense(2)

    def call(self, inputs):
        items, table = inputs
        return self.answer(ops.take(table, items, axis=0))


class LooksUpInItsStep(LooksUp):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def table_of_the_batch(kind=LooksUp):
    made = kind()
    made.compile("sgd", "mse")
    return made, ((np.arange(8)[::-1].copy(), FLAT[:8]), TARGET[:8])


class Groups(layers.Layer):
    """A fixed number of groups, of which there are none in a slice."""

    def call(self, x):
        rows = x.shape[0] or 8
        return x * (8 // (rows // 8))


def groups():
    return compiled(stack(layers.Dense(4), Groups(), layers.Dense(2))), (FLAT[:8], TARGET[:8])


class FullGraph(keras.Model):
    """A layer over the nodes of one graph, whose adjacency is an input."""

    def __init__(self):
        super().__init__()
        self.answer = layers.Dense(2)

    def call(self, inputs):
        nodes, adjacency = inputs
        return ops.matmul(adjacency, self.answer(nodes))


def full_graph():
    made = FullGraph()
    made.compile("sgd", "mse")
    return made, ((FLAT[:8], RNG.uniform(size=(8, 8))), TARGET[:8])


class Anchors(keras.Model):
    """A batch is two views of one image for each class."""

    def __init__(self):
        super().__init__()
        self.codes = layers.Dense(3)

    def train_step(self, data):
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            likeness = ops.matmul(self.codes(anchors), ops.transpose(self.codes(positives)))
            each = keras.losses.sparse_categorical_crossentropy(ops.arange(4), likeness, from_logits=True)
            loss = ops.mean(each)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def anchors():
    made = Anchors()
    made.compile("sgd")
    views = tf.data.Dataset.from_tensor_slices(RNG.normal(size=(3, 2, 4, 6)))
    return made, (views,)


UNCUT = r"split=\[.*per_device=True"
# By name: the program, and what is said.
REFUSED = {
    "texts padded to the longest of a slice": (tagger, f"takes the batch as a whole.*{UNCUT}"),
    "a likeness for each pair": (likeness, r"dims for each slice, \(5, 5\) and \(4, 4\).*per_device=True"),
    "a table of the batch": (table_of_the_batch, f"fails in slices: indices.*{UNCUT}"),
    "a table of the batch in a train_step": (
        lambda: table_of_the_batch(LooksUpInItsStep),
        f"fails in slices: indices.*{UNCUT}",
    ),
    "a division by no groups": (groups, rf"division.*uneven\.py:\d+: return x.*{UNCUT}"),
    "one graph": (full_graph, rf"does not take a slice of 4.*{UNCUT}"),
    "two views in a batch": (anchors, rf"does not take a slice of 1.*{UNCUT}"),
}
