"""Models that Keras trains by its own step: layers, losses, metrics and options of all kinds."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

RNG = np.random.default_rng(0)
FLAT = RNG.normal(size=(24, 6))
TARGET = RNG.normal(size=(24, 2))
LABELS = RNG.integers(0, 3, 24)
BINARY = (RNG.uniform(size=24) < 0.25).astype("float64")
IMAGES = RNG.normal(size=(24, 8, 8, 2))
MAPS = (RNG.uniform(size=(24, 8, 8, 1)) < 0.4).astype("float64")
IDS = RNG.integers(1, 9, (24, 7)) * (np.arange(7) < RNG.integers(2, 8, 24)[:, None])
TAGS = RNG.integers(0, 3, (24, 7))
SERIES = RNG.normal(size=(24, 9, 3))


def stack(*inner, given=(6,), dtype=None):
    return keras.Sequential([keras.Input(given, dtype=dtype), *inner])


def compiled(made, loss="mse", optimizer=None, **options):
    made.compile(optimizer or keras.optimizers.Adam(0.01), loss, **options)
    return made


def crossentropy(**options):
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def classifier():
    made = stack(layers.Dense(8, "relu"), layers.Dense(3))
    return compiled(made, crossentropy(), metrics=["accuracy"]), (FLAT, LABELS)


def weighted_regression():
    return compiled(stack(layers.Dense(8, "tanh"), layers.Dense(2)), metrics=["mae"]), (
        FLAT,
        TARGET,
        RNG.uniform(size=24),
    )


def convolutions():
    inner = layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(), layers.Dense(3)
    return compiled(stack(*inner, given=(8, 8, 2)), crossentropy(), metrics=["accuracy"]), (IMAGES, LABELS)


def depthwise():
    inner = (
        layers.DepthwiseConv2D(3, activation="tanh"),
        layers.SeparableConv2D(4, 3, activation="tanh"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(3),
    )
    return compiled(stack(*inner, given=(8, 8, 2)), crossentropy()), (IMAGES, LABELS)


def several_inputs_and_outputs():
    one, other = keras.Input([6]), keras.Input([9, 3])
    both = layers.Concatenate()([layers.Dense(4, "tanh")(one), layers.GRU(4)(other)])
    heads = [layers.Dense(2, name="value")(both), layers.Dense(3, name="kind")(both)]
    made = keras.Model([one, other], heads)
    losses, weights = {"value": "mse", "kind": crossentropy()}, {"value": 1.0, "kind": 0.3}
    compiled(made, losses, loss_weights=weights, metrics={"value": ["mae"], "kind": ["accuracy"]})
    return made, ([FLAT, SERIES], {"value": TARGET, "kind": LABELS})


def bidirectional_text():
    inner = layers.Embedding(9, 5), layers.Bidirectional(layers.LSTM(4)), layers.Dense(1, "sigmoid")
    made = stack(*inner, given=(None,), dtype="int64")
    return compiled(made, "binary_crossentropy", metrics=["accuracy"]), (IDS, BINARY)


def sequence_to_sequence():
    source, shown = keras.Input([None], dtype="int64"), keras.Input([None], dtype="int64")
    _, *state = layers.LSTM(5, return_state=True)(layers.Embedding(9, 4)(source))
    told = layers.LSTM(5, return_sequences=True)(layers.Embedding(9, 4)(shown), initial_state=state)
    made = keras.Model([source, shown], layers.Dense(9)(told))
    return compiled(made, crossentropy(), metrics=["accuracy"]), ([IDS, IDS], IDS)


def transformer():
    given = keras.Input([None], dtype="int64")
    x = layers.Embedding(9, 8)(given)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(12, "gelu")(x)))
    made = keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
    return compiled(made, crossentropy(), keras.optimizers.AdamW(0.01)), (IDS, LABELS)


def mask_at_the_output():
    inner = layers.Embedding(9, 5, mask_zero=True), layers.LSTM(4, return_sequences=True), layers.Dense(3)
    made = stack(*inner, given=(7,), dtype="int64")
    return compiled(made, crossentropy(), metrics=["accuracy"]), (IDS, TAGS)


def tagger_with_a_masked_loss():
    def masked(y, prediction):
        each = keras.losses.sparse_categorical_crossentropy(y, prediction, from_logits=True)
        counted = ops.cast(y > 0, each.dtype)
        return ops.sum(each * counted) / ops.sum(counted)

    made = stack(layers.Embedding(9, 5), layers.Dense(3), given=(7,), dtype="int64")
    return compiled(made, masked), (IDS, TAGS)


def ignored_class():
    made = stack(layers.Conv2D(3, 3, padding="same"), given=(8, 8, 2))
    return compiled(made, crossentropy(ignore_class=0)), (IMAGES, RNG.integers(0, 3, (24, 8, 8)))


class Adds(layers.Layer):
    """As the layer of a CAPTCHA reader that adds its own loss."""

    def __init__(self, loss):
        super().__init__()
        self.loss = loss

    def call(self, x):
        self.add_loss(self.loss(x))
        return x


def added(loss):
    return compiled(stack(layers.Dense(4, "tanh"), Adds(loss), layers.Dense(2))), (FLAT, TARGET)


def added_by_example():
    return added(lambda x: ops.mean(x**2, axis=-1, keepdims=True))


def added_sum():
    return added(ops.sum)


def added_mean():
    return added(lambda x: ops.mean(x**2))


def loss_that_sums():
    return compiled(stack(layers.Dense(2)), lambda y, p: ops.sum((y - p) ** 2)), (FLAT, TARGET)


def reduction_that_sums():
    loss = keras.losses.Huber(reduction="sum")
    return compiled(stack(layers.Dense(2)), loss, metrics=["mae"]), (FLAT, TARGET)


def mean_by_weights():
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return compiled(stack(layers.Dense(2)), loss), (FLAT, TARGET, RNG.uniform(size=24))


class SumsItself(keras.Model):
    def __init__(self):
        super().__init__()
        self.net = layers.Dense(2)

    def call(self, x):
        return self.net(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.sum((y - y_pred) ** 2) + 0.1 * ops.sum(self.net.kernel**2)


def compute_loss_that_sums():
    return compiled(SumsItself(), None), (FLAT, TARGET)


def root_mean_square():
    return compiled(stack(layers.Dense(2)), lambda y, p: ops.sqrt(ops.mean((y - p) ** 2))), (FLAT, TARGET)


def dice():
    made = stack(layers.Conv2D(1, 3, padding="same", activation="sigmoid"), given=(8, 8, 2))
    return compiled(made, keras.losses.Dice()), (IMAGES, MAPS)


def circle():
    made = stack(layers.Dense(4), layers.UnitNormalization())
    return compiled(made, keras.losses.Circle()), (FLAT, LABELS)


def examples_compared():
    """As a triplet or a contrastive loss over the batch."""

    def loss(y, prediction):
        near = ops.cast(y[:, None] == y[None, :], prediction.dtype)
        apart = ops.sum((prediction[:, None] - prediction[None, :]) ** 2, axis=-1)
        return ops.mean(near * apart + (1 - near) * ops.relu(1.0 - apart))

    return compiled(stack(layers.Dense(3)), loss), (FLAT, LABELS)


def siamese():
    one, other, tower = keras.Input([6]), keras.Input([6]), stack(layers.Dense(4, "tanh"))
    apart = layers.Subtract()([tower(one), tower(other)])
    made = keras.Model([one, other], layers.Dense(1, "sigmoid")(apart))
    return compiled(made, "binary_crossentropy", metrics=["accuracy"]), ([FLAT, FLAT[::-1].copy()], BINARY)


def autoencoder():
    inner = (
        layers.Conv2D(4, 3, 2, "same", activation="relu"),
        layers.Conv2DTranspose(2, 3, 2, "same"),
    )
    return compiled(stack(*inner, given=(8, 8, 2)), "mse"), (IMAGES, IMAGES)


class Divergence(layers.Layer):
    """A variational bottleneck that adds its divergence; what is sampled is the mean."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread = layers.Dense(3), layers.Dense(3)

    def call(self, x):
        mean, spread = self.mean(x), self.spread(x)
        self.add_loss(-0.5 * ops.mean(1 + spread - mean**2 - ops.exp(spread)))
        return mean


def variational():
    return compiled(stack(layers.Dense(5, "tanh"), Divergence(), layers.Dense(6))), (FLAT, FLAT)


def wide_and_deep():
    given = keras.Input([6])
    deep = layers.Dense(4, "relu")(layers.Dense(8, "relu")(given))
    made = keras.Model(given, layers.Dense(2)(layers.Concatenate()([given, deep])))
    return compiled(made, optimizer=keras.optimizers.Ftrl(0.1)), (FLAT, TARGET)


def features():
    normal = layers.Normalization()
    normal.adapt(FLAT)
    number, kind = keras.Input([6]), keras.Input([1], dtype="int64")
    coded = layers.CategoryEncoding(3, "one_hot")(kind)
    made = keras.Model([number, kind], layers.Dense(1)(layers.Concatenate()([normal(number), coded])))
    return compiled(made, "binary_crossentropy"), ([FLAT, LABELS[:, None]], BINARY)


def synchronised_norm():
    inner = layers.Dense(8, use_bias=False), layers.BatchNormalization(synchronized=True), layers.Dense(2)
    return compiled(stack(*inner)), (FLAT, TARGET)


def norms_of_examples():
    inner = layers.Dense(8), layers.GroupNormalization(2), layers.Dense(4), layers.LayerNormalization()
    return compiled(stack(*inner, layers.Dense(2))), (FLAT, TARGET)


def spectral_norm():
    inner = layers.SpectralNormalization(layers.Dense(4, "tanh")), layers.Dense(2)
    return compiled(stack(*inner), optimizer=keras.optimizers.SGD(0.1)), (FLAT, TARGET)


def averaged_and_clipped():
    rate = keras.optimizers.schedules.CosineDecay(0.05, 10)
    optimizer = keras.optimizers.AdamW(rate, use_ema=True, ema_momentum=0.9, global_clipnorm=0.5)
    return compiled(stack(layers.Dense(4, "tanh"), layers.Dense(2)), optimizer=optimizer), (FLAT, TARGET)


def accumulated_by_the_optimizer():
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)
    return compiled(stack(layers.Dense(2)), optimizer=optimizer), (FLAT, TARGET)


def several_steps_per_execution():
    made = stack(layers.Dense(2))
    return compiled(made, metrics=["mae"], steps_per_execution=2), (FLAT, TARGET)


def regularised_and_constrained():
    inner = (
        layers.Dense(
            8, "relu", kernel_regularizer=keras.regularizers.L1L2(0.01, 0.01), activity_regularizer="l2"
        ),
        layers.Dense(2, kernel_constraint="unit_norm"),
    )
    return compiled(stack(*inner)), (FLAT, TARGET)


def frozen_layers():
    base = stack(layers.Dense(8, "tanh"))
    base.trainable = False
    return compiled(stack(base, layers.Dense(3)), crossentropy(), metrics=["accuracy"]), (FLAT, LABELS)


def imbalanced_classes():
    kinds = keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall
    metrics = [kind(name=kind.__name__.lower()) for kind in kinds]
    made = stack(layers.Dense(8, "relu"), layers.Dense(1, "sigmoid"))
    return (
        compiled(made, "binary_crossentropy", metrics=metrics),
        (FLAT, BINARY),
        {"class_weight": {0: 0.5, 1: 3.0}},
    )


class Recommender(keras.Model):
    def __init__(self):
        super().__init__()
        self.users, self.films = (layers.Embedding(9, 4, embeddings_regularizer="l2") for _ in range(2))

    def call(self, pairs):
        return ops.sigmoid(ops.sum(self.users(pairs[:, 0]) * self.films(pairs[:, 1]), axis=1))


def recommender():
    made = Recommender()
    return compiled(made, "binary_crossentropy"), (RNG.integers(0, 9, (24, 2)), BINARY)


def time_series():
    inner = layers.Conv1D(4, 3, padding="causal"), layers.GRU(4, return_sequences=True), layers.Dense(1)
    return compiled(stack(*inner, given=(9, 3)), "mae"), (SERIES, SERIES[:, :, :1])


def many_widths():
    made = stack(layers.Embedding(10, 4), layers.LSTM(3), layers.Dense(2), given=(None,), dtype="int64")
    batches = [(IDS[:8, :width] + 1, TARGET[:8]) for width in (3, 7, 5, 4)]
    kinds = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, 2], tf.float64)
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=kinds)
    data = data.apply(tf.data.experimental.assert_cardinality(4))
    return compiled(made, optimizer=keras.optimizers.SGD(0.1)), (data,)


EQUAL = {
    "classifier": classifier,
    "sample weights": weighted_regression,
    "convolutions": convolutions,
    "depthwise convolutions": depthwise,
    "several inputs and outputs": several_inputs_and_outputs,
    "bidirectional LSTM": bidirectional_text,
    "sequence to sequence": sequence_to_sequence,
    "transformer": transformer,
    "mask at the output": mask_at_the_output,
    "tagger with a masked loss": tagger_with_a_masked_loss,
    "ignore_class": ignored_class,
    "add_loss by example": added_by_example,
    "add_loss of a sum": added_sum,
    "add_loss of a mean": added_mean,
    "loss that sums": loss_that_sums,
    "reduction='sum'": reduction_that_sums,
    "reduction='mean_with_sample_weight'": mean_by_weights,
    "compute_loss that sums": compute_loss_that_sums,
    "root mean square": root_mean_square,
    "Dice over all examples": dice,
    "Circle": circle,
    "loss that compares examples": examples_compared,
    "siamese towers": siamese,
    "autoencoder": autoencoder,
    "variational bottleneck": variational,
    "wide and deep": wide_and_deep,
    "preprocessed features": features,
    "synchronised batch norm": synchronised_norm,
    "layer and group norm": norms_of_examples,
    "spectral norm": spectral_norm,
    "schedule, decay, average, clipping": averaged_and_clipped,
    "gradient_accumulation_steps": accumulated_by_the_optimizer,
    "steps_per_execution": several_steps_per_execution,
    "regularizers and constraints": regularised_and_constrained,
    "frozen layers": frozen_layers,
    "imbalanced classes": imbalanced_classes,
    "recommender": recommender,
    "time series": time_series,
    "many widths": many_widths,
}
