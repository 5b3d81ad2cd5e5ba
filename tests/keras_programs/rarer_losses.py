"""Losses and metrics of many forms: masks and weights, states, attributes, vectors."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.plain_steps import compiled, crossentropy, stack

RNG = np.random.default_rng(37)
FLAT, TARGET = RNG.normal(size=(24, 6)), RNG.normal(size=(24, 2))
LABELS, BINARY = RNG.integers(0, 3, 24), (RNG.uniform(size=24) < 0.4).astype("float64")
IDS = RNG.integers(1, 9, (24, 7)) * (np.arange(7) < RNG.integers(2, 8, 24)[:, None])
TAGS, SERIES = RNG.integers(0, 3, (24, 7)), RNG.normal(size=(24, 6, 3))
IMAGES = RNG.uniform(size=(24, 12, 12, 1))


def vectors():
    made = stack(layers.Dense(4, "relu"), layers.Dense(3, "softmax"))
    metrics = [
        keras.metrics.F1Score(average=None, name="f1"),
        keras.metrics.FBetaScore(average="weighted", beta=2.0, name="f2"),
        keras.metrics.PrecisionAtRecall(0.5, name="precision"),
        keras.metrics.OneHotMeanIoU(3, name="iou"),
        keras.metrics.CosineSimilarity(name="cosine"),
        keras.metrics.PearsonCorrelation(axis=0, name="pearson"),
    ]
    classes = np.eye(3)[LABELS]
    made = compiled(made, keras.losses.CategoricalFocalCrossentropy(), metrics=metrics)
    return made, (FLAT, classes), {"validation_data": (FLAT[:9], classes[:9])}


def masked_tagger(labels=TAGS):
    inner = layers.Embedding(9, 5, mask_zero=True), layers.GRU(4, return_sequences=True), layers.Dense(3)
    made = stack(*inner, given=(7,), dtype="int64")
    return compiled(made, crossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"])


def masks_and_weights_of_examples():
    return masked_tagger(), (IDS, TAGS, RNG.uniform(0, 2, (24, 1))), {"validation_split": 0.25}


def masks_and_weights_of_tokens():
    return masked_tagger(), (IDS, TAGS, RNG.uniform(0, 2, (24, 7)))


def some_outputs_are_masked():
    """Three outputs: one has a mask, one a sum, one a weight for each example."""
    ids = keras.Input([7], dtype="int64")
    x = layers.Embedding(9, 4, mask_zero=True)(ids)
    every = layers.LSTM(4, return_sequences=True)(x)
    last = layers.LSTM(4)(x)
    outputs = {
        "tags": layers.Dense(3, name="tags")(every),
        "kind": layers.Dense(3, name="kind")(last),
        "size": layers.Dense(2, name="size")(last),
    }
    made = keras.Model(ids, outputs)
    losses = {"tags": crossentropy(), "kind": crossentropy(), "size": keras.losses.MeanSquaredError("sum")}
    made.compile(
        keras.optimizers.SGD(0.05), losses, loss_weights={"tags": 0.5, "kind": 2.0, "size": 0.1},
        metrics={"tags": ["accuracy"], "size": ["mae"]}, weighted_metrics={"kind": ["accuracy"]},
    )  # fmt: skip
    weights = {name: RNG.uniform(0.5, 2, (24, 1) if name == "tags" else 24) for name in outputs}
    return made, (IDS, {"tags": TAGS, "kind": LABELS, "size": TARGET}, weights)


class Remembers(keras.losses.Loss):
    """Weighs errors by a moving mean of them."""

    def __init__(self):
        super().__init__()
        self.mean = tf.Variable(1.0, trainable=False, dtype=keras.config.floatx(), name="mean_error")

    def call(self, y_true, y_pred):
        error = ops.mean(ops.square(y_true - y_pred), axis=-1)
        self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(ops.stop_gradient(error)))
        return error / self.mean


def a_loss_that_remembers():
    return compiled(stack(layers.Dense(2)), Remembers()), (FLAT, TARGET)


class Uncertain(keras.Model):
    """Weighs the losses of its tasks by what it learns of them."""

    def __init__(self):
        super().__init__()
        self.inner, self.a, self.b = layers.Dense(4, "tanh"), layers.Dense(2), layers.Dense(3)
        self.logs = self.add_weight(shape=(2,), initializer="zeros", name="logs")

    def call(self, x):
        x = self.inner(x)
        return self.a(x), self.b(x)

    def compute_loss(self, x, y, y_pred, sample_weight=None, **kwargs):
        one = ops.mean(keras.losses.mean_squared_error(y[0], y_pred[0]))
        other = ops.mean(keras.losses.sparse_categorical_crossentropy(y[1], y_pred[1], from_logits=True))
        return ops.sum(ops.exp(-self.logs) * ops.stack([one, other]) + self.logs)


def tasks_with_weights_that_are_learnt():
    made = Uncertain()
    made.compile(keras.optimizers.Adam(0.01))
    return made, (FLAT, (TARGET, LABELS))


class Attributes(keras.Model):
    """Its call leaves something in attributes, which its loss reads."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.decode = layers.Dense(3), layers.Dense(3), layers.Dense(6)

    def call(self, x, training=False):
        self.z_mean, self.z_spread = self.mean(x), self.spread(x)
        return self.decode(self.z_mean)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        apart = -0.5 * ops.mean(1 + self.z_spread - self.z_mean**2 - ops.exp(self.z_spread))
        return super().compute_loss(x, y, y_pred, sample_weight) + apart


def attributes_for_the_loss():
    return compiled(Attributes(), metrics=["mae"]), (FLAT, FLAT)


class AttributesForMetrics(Attributes):
    def __init__(self):
        super().__init__()
        self.apart = keras.metrics.Mean("apart")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.Model.compute_loss(self, x, y, y_pred, sample_weight)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.apart.update_state(ops.sum(self.z_mean**2, axis=1))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def attributes_for_metrics():
    return compiled(AttributesForMetrics(), metrics=["mae"]), (FLAT, FLAT)


def tripled():
    """Three towers, of which the outputs are put together; there is no target."""
    given = [keras.Input([6], name=name) for name in ("anchor", "near", "far")]
    tower = stack(layers.Dense(5, "tanh"), layers.Dense(4), layers.UnitNormalization())
    made = keras.Model(given, layers.Concatenate()([tower(each) for each in given]))

    def loss(_, found):
        anchor, near, far = ops.split(found, 3, axis=1)
        apart = ops.sum((anchor - near) ** 2, axis=1) - ops.sum((anchor - far) ** 2, axis=1)
        return ops.maximum(apart + 0.5, 0.0)

    x = [RNG.normal(size=(24, 6)) for _ in given]
    return compiled(made, loss), (x, np.zeros((24, 1)))


def detector():
    """As YOLO: parts of the loss count where there is an object, divided by the size of the batch."""

    def loss(y, p):
        there = y[..., :1]
        places = ops.sum(there * ops.square(y[..., 1:3] - p[..., 1:3]))
        found = tf.boolean_mask(p[..., 0], y[..., 0] > 0.5)
        missed = ops.sum(ops.square(found - 1.0))
        return (5.0 * places + missed) / ops.cast(ops.shape(y)[0], p.dtype)

    y = RNG.uniform(size=(24, 4, 4, 3)).round()
    made = stack(layers.Conv2D(4, 3, 3, activation="tanh"), layers.Conv2D(3, 1), given=(12, 12, 1))
    return compiled(made, loss, keras.optimizers.SGD(0.01)), (IMAGES, y)


def masked_by_hand():
    """As a tagger: the mean over tokens that count, by a boolean mask."""

    def loss(y, p):
        each = keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)
        return ops.mean(tf.boolean_mask(each, y > 0))

    made = stack(layers.Embedding(9, 5), layers.Bidirectional(layers.GRU(3, return_sequences=True)),
                 layers.Dense(3), given=(7,), dtype="int64")  # fmt: skip
    return compiled(made, loss), (IDS, TAGS)


def perceptual():
    """What another network, which is not trained, sees of it."""
    eye = stack(layers.Conv2D(4, 3, 2, activation="relu"), layers.Conv2D(4, 3), given=(12, 12, 1))
    eye.trainable = False

    def seen(y, p):
        return ops.mean(ops.square(eye(y) - eye(p))) + 0.1 * ops.mean(ops.abs(y - p))

    def ratio(y, p):
        return tf.image.psnr(y, p, max_val=1.0)

    inner = layers.Conv2D(8, 3, padding="same", activation="relu"), layers.Conv2D(4, 3, 2, padding="same")
    made = stack(*inner, layers.Lambda(lambda x: tf.nn.depth_to_space(x, 2)), given=(12, 12, 1))
    return compiled(made, seen, metrics=[ratio]), (IMAGES, IMAGES[::-1].copy())


def mixture_density():
    """Weights, means and spreads of normal distributions."""

    def loss(y, p):
        weight, mean, spread = ops.split(p, 3, axis=-1)
        spread = ops.softplus(spread) + 1e-3
        each = -0.5 * ops.square((y[:, :1] - mean) / spread) - ops.log(spread)
        return -ops.logsumexp(ops.log_softmax(weight) + each, axis=-1)

    return compiled(stack(layers.Dense(8, "tanh"), layers.Dense(9)), loss), (FLAT, TARGET)


class Quantile(keras.losses.Loss):
    def __init__(self, q=0.9, name="quantile"):
        super().__init__(name=name, reduction="sum")
        self.q = q

    def call(self, y_true, y_pred):
        error = y_true - y_pred
        return ops.sum(ops.maximum(self.q * error, (self.q - 1) * error), axis=-1)


def quantiles():
    given = keras.Input([6])
    x = layers.Dense(5, "tanh")(given)
    made = keras.Model(given, [layers.Dense(2)(x), layers.Dense(2)(x)])
    losses = [Quantile(0.1), Quantile(0.9)]
    return compiled(made, losses, keras.optimizers.SGD(0.01), loss_weights=[0.3, 0.7]), (
        FLAT,
        [TARGET, TARGET],
    )


class Endpoint(layers.Layer):
    """Computes loss and metric from targets that are an input."""

    def __init__(self):
        super().__init__()
        self.loss = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy = keras.metrics.BinaryAccuracy(name="accuracy")

    def call(self, logits, targets=None, sample_weight=None):
        if targets is not None:
            self.add_loss(self.loss(targets, logits, sample_weight))
            self.accuracy.update_state(targets, logits, sample_weight)
        return ops.sigmoid(logits)


def endpoint():
    x, y, w = keras.Input([6], name="x"), keras.Input([1], name="y"), keras.Input([], name="w")
    made = keras.Model([x, y, w], Endpoint()(layers.Dense(1)(x), y, w))
    made.compile(keras.optimizers.Adam(0.01))
    return made, ({"x": FLAT, "y": BINARY[:, None], "w": np.ones(24)},)


def heard():
    """CTC with labels of several lengths, padded with 0."""

    def loss(y, p):
        rows = ops.shape(y)[0]
        lengths = ops.sum(ops.cast(y > 0, "int32"), axis=1)
        frames = ops.full((rows,), ops.shape(p)[1], "int32")
        return ops.mean(ops.ctc_loss(y, p, lengths, frames, mask_index=0))

    labels = RNG.integers(1, 5, (24, 3)) * (np.arange(3) < RNG.integers(1, 4, 24)[:, None])
    made = stack(layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.Dense(5), given=(6, 3))
    return compiled(made, loss, keras.optimizers.SGD(0.01)), (SERIES, labels.astype("int32"))


EQUAL = {
    "metrics that are vectors": vectors,
    "masks and weights of examples": masks_and_weights_of_examples,
    "masks and weights of tokens": masks_and_weights_of_tokens,
    "masks of some outputs": some_outputs_are_masked,
    "a loss that remembers": a_loss_that_remembers,
    "weights of tasks that are learnt": tasks_with_weights_that_are_learnt,
    "attributes for the loss": attributes_for_the_loss,
    "triplets that are put together": tripled,
    "a detector": detector,
    "a mask by hand": masked_by_hand,
    "a perceptual loss": perceptual,
    "a mixture of densities": mixture_density,
    "quantiles that are summed": quantiles,
    "an endpoint with targets": endpoint,
    "CTC of several lengths": heard,
}
# By name: the program, and what is said.
REFUSED = {
    "attributes for metrics": (
        attributes_for_metrics,
        "compute_metrics='AttributesForMetrics': reads what call",
    ),
}
