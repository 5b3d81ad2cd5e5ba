"""More models, as people write them: vision, text, generative models, recommenders, series, many outputs."""

import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.plain_steps import compiled, crossentropy, stack

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(24, 8, 8, 3))
PIXELS = RNG.integers(0, 3, (24, 8, 8))
LABELS = RNG.integers(0, 3, 24)
RARE = (RNG.uniform(size=24) < 0.3).astype("float64")
SERIES = RNG.normal(size=(24, 7, 2))
NEXT = RNG.normal(size=(24, 2))
IDS = RNG.integers(1, 12, (24, 6))
USERS, ITEMS = RNG.integers(0, 9, 24), RNG.integers(0, 15, 24)
NOISE = RNG.normal(size=(24, 4))


class Patches(layers.Layer):
    """Cuts an image into patches, puts a token in front, and adds what says where each is."""

    def __init__(self, size, width):
        super().__init__()
        self.size, self.project = size, layers.Dense(width)

    def build(self, shape):
        count = (shape[1] // self.size) * (shape[2] // self.size)
        width = self.project.units
        self.token = self.add_weight(shape=(1, 1, width), initializer="random_normal", name="token")
        self.where = self.add_weight(shape=(1, count + 1, width), initializer="random_normal", name="where")

    def call(self, images):
        patches = ops.image.extract_patches(images, self.size)
        rows = ops.shape(images)[0]
        patches = self.project(ops.reshape(patches, (rows, -1, patches.shape[-1])))
        token = ops.broadcast_to(self.token, (rows, 1, self.project.units))
        return ops.concatenate([token, patches], axis=1) + self.where


def attention_block(x, width, heads):
    normed = layers.LayerNormalization()(x)
    x = layers.Add()([x, layers.MultiHeadAttention(heads, width // heads)(normed, normed)])
    inner = layers.Dense(2 * width, "gelu")(layers.LayerNormalization()(x))
    return layers.Add()([x, layers.Dense(width)(inner)])


def vision_transformer():
    images = keras.Input((8, 8, 3))
    x = Patches(4, 8)(images)
    for _ in range(2):
        x = attention_block(x, 8, 2)
    made = keras.Model(images, layers.Dense(3)(layers.LayerNormalization()(x)[:, 0]))
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.01)
    return compiled(made, crossentropy(), optimizer, metrics=["accuracy"]), (IMAGES, LABELS)


def u_net():
    images = keras.Input((8, 8, 3))
    down = layers.Conv2D(4, 3, padding="same", activation="relu")(images)
    middle = layers.Conv2D(6, 3, padding="same", activation="relu")(layers.MaxPooling2D()(down))
    up = layers.Conv2DTranspose(4, 2, strides=2)(middle)
    joined = layers.Concatenate()([down, up, layers.UpSampling2D()(middle)])
    made = keras.Model(images, layers.Conv2D(3, 1)(joined))
    return compiled(made, crossentropy(), metrics=["accuracy"]), (IMAGES, PIXELS)


class Divergence(layers.Layer):
    """The distance of a distribution from the normal one, as a loss of the layer; noise is given to it."""

    def call(self, inputs):
        mean, spread, noise = inputs
        distance = -0.5 * (1 + spread - ops.square(mean) - ops.exp(spread))
        self.add_loss(0.1 * ops.mean(ops.sum(distance, axis=1)))
        return mean + ops.exp(0.5 * spread) * noise


def text_vae():
    ids, noise = keras.Input((6,), dtype="int64"), keras.Input((4,))
    read = layers.GRU(8)(layers.Embedding(12, 5)(ids))
    code = Divergence()([layers.Dense(4)(read), layers.Dense(4)(read), noise])
    written = layers.GRU(8, return_sequences=True)(layers.RepeatVector(6)(code))
    made = keras.Model([ids, noise], layers.TimeDistributed(layers.Dense(12))(written))
    return compiled(made, crossentropy()), ((IDS, NOISE), IDS)


class MaskedAutoencoder(keras.Model):
    """Only patches that were hidden count, and some images have more of them."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = layers.Dense(8, "tanh"), layers.Dense(6)

    def call(self, inputs):
        patches, hidden = inputs
        return self.decode(self.encode(patches * (1 - hidden[..., None])))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        hidden = x[1]
        error = ops.mean(ops.square(x[0] - y_pred), axis=-1)
        return ops.sum(error * hidden) / ops.sum(hidden)


def masked_autoencoder():
    patches = RNG.normal(size=(24, 9, 6))
    hidden = (RNG.uniform(size=(24, 9)) < RNG.uniform(0.2, 0.9, (24, 1))).astype("float64")
    made = MaskedAutoencoder()
    made.compile(keras.optimizers.Adam(0.01))
    return made, ((patches, hidden),)


def gram(features):
    flat = ops.reshape(features, (ops.shape(features)[0], -1, features.shape[-1]))
    return ops.matmul(ops.transpose(flat, (0, 2, 1)), flat) / 64


def style(expected, found):
    return ops.mean(ops.square(gram(expected) - gram(found)), axis=(1, 2)) + 0.1 * ops.mean(
        ops.abs(found[:, 1:] - found[:, :-1]), axis=(1, 2, 3)
    )


def neural_style():
    made = stack(
        layers.Conv2D(6, 3, padding="same", activation="tanh"),
        layers.Conv2D(3, 3, padding="same"),
        given=(8, 8, 3),
    )
    return compiled(made, style), (IMAGES, IMAGES[::-1].copy())


class TwoTowers(keras.Model):
    """Every other item of the batch is a wrong answer."""

    def __init__(self):
        super().__init__()
        self.user = keras.Sequential([layers.Embedding(9, 6), layers.Dense(4)])
        self.item = keras.Sequential([layers.Embedding(15, 6), layers.Dense(4)])

    def call(self, inputs):
        return self.user(inputs["user"]), self.item(inputs["item"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        users, items = y_pred
        scores = ops.matmul(users, ops.transpose(items))
        right = ops.arange(ops.shape(scores)[0])
        return ops.mean(keras.losses.sparse_categorical_crossentropy(right, scores, from_logits=True))


def two_towers():
    made = TwoTowers()
    made.compile(keras.optimizers.SGD(0.1))
    return made, ({"user": USERS, "item": ITEMS},)


class Clipped(keras.constraints.Constraint):
    def __call__(self, weight):
        return ops.clip(weight, -0.05, 0.05)


class WassersteinGAN(keras.Model):
    """Two steps of a critic whose weights are clipped, one of a generator; the noise comes with the data."""

    def __init__(self):
        super().__init__()
        self.critic = stack(
            layers.Dense(8, "leaky_relu", kernel_constraint=Clipped()),
            layers.Dense(1, kernel_constraint=Clipped()),
        )
        self.generator = stack(layers.Dense(8, "relu"), layers.Dense(6), given=(4,))
        self.first, self.second = keras.optimizers.RMSprop(0.01), keras.optimizers.RMSprop(0.01)
        self.c_tracker, self.g_tracker = keras.metrics.Mean("critic"), keras.metrics.Mean("generator")

    @property
    def metrics(self):
        return [self.c_tracker, self.g_tracker]

    def train_step(self, data):
        real, noise = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                made = self.generator(noise, training=True)
                loss = ops.mean(self.critic(made, training=True)) - ops.mean(self.critic(real, training=True))
            variables = self.critic.trainable_variables
            self.first.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.c_tracker.update_state(loss)
        with tf.GradientTape() as tape:
            loss = -ops.mean(self.critic(self.generator(noise, training=True), training=True))
        variables = self.generator.trainable_variables
        self.second.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.g_tracker.update_state(loss)
        return {metric.name: metric.result() for metric in self.metrics}


def wasserstein_gan():
    made = WassersteinGAN()
    made.compile()
    return made, (tf.data.Dataset.from_tensor_slices((RNG.normal(size=(24, 6)), NOISE)).batch(10),)


class NearestIsRight(keras.metrics.Metric):
    """How often the nearest other example of a batch has the same label, kept in a variable of its own."""

    def __init__(self, name="nearest"):
        super().__init__(name=name)
        self.right = self.add_variable((), "zeros", name="right")
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        rows = ops.shape(y_pred)[0]
        likeness = ops.matmul(y_pred, ops.transpose(y_pred)) - 1e9 * ops.eye(rows, dtype=y_pred.dtype)
        labels = ops.reshape(y_true, (-1,))
        same = ops.equal(ops.take(labels, ops.argmax(likeness, axis=1)), labels)
        self.right.assign_add(ops.sum(ops.cast(same, self.dtype)))
        self.seen.assign_add(ops.cast(rows, self.dtype))

    def result(self):
        return self.right / ops.maximum(self.seen, 1)


def pulled_together(labels, found):
    likeness = ops.matmul(found, ops.transpose(found))
    labels = ops.reshape(labels, (-1, 1))
    same = ops.cast(ops.equal(labels, ops.transpose(labels)), found.dtype)
    return ops.mean(ops.square(likeness - same))


def metric_learning():
    made = stack(layers.Dense(8, "tanh"), layers.Dense(4), layers.UnitNormalization())
    return compiled(made, pulled_together, metrics=[NearestIsRight()]), (RNG.normal(size=(24, 6)), LABELS)


def series_with_states():
    series = keras.Input((7, 2))
    outputs, state = layers.GRU(6, return_sequences=True, return_state=True, stateful=False)(series)
    further = layers.GRU(6)(outputs, initial_state=state)
    made = keras.Model(series, layers.Dense(2)(layers.Concatenate()([further, state])))
    options = {"optimizer": keras.optimizers.Nadam(0.01), "metrics": ["mae", "mape"]}
    return compiled(made, keras.losses.Huber(0.5), **options), (SERIES, NEXT)


def focal_with_class_weights():
    made = stack(layers.Dense(8, "relu"), layers.Dense(1, "sigmoid"))
    metrics = [keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="p")]
    loss = keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True, label_smoothing=0.05)
    made = compiled(made, loss, metrics=metrics, weighted_metrics=["accuracy"])
    return made, (RNG.normal(size=(24, 6)), RARE), {"class_weight": {0: 0.7, 1: 2.3}}


def named_outputs():
    x = keras.Input((6,), name="x")
    inner = layers.Dense(8, "tanh")(x)
    outputs = {
        "kind": layers.Dense(3, name="kind")(inner),
        "size": layers.Dense(1, name="size")(inner),
        "rare": layers.Dense(1, "sigmoid", name="rare")(inner),
    }
    made = keras.Model(x, outputs)
    made.compile(
        keras.optimizers.Adam(0.01),
        {"kind": crossentropy(), "size": "log_cosh", "rare": "binary_crossentropy"},
        loss_weights={"kind": 1.0, "size": 0.3, "rare": 2.0},
        metrics={"kind": ["accuracy"], "size": ["mae", "mse"], "rare": ["AUC"]},
        weighted_metrics={"size": ["mae"]},
    )
    targets = {"kind": LABELS, "size": NEXT[:, :1], "rare": RARE[:, None]}
    weights = {name: RNG.uniform(0.5, 2, 24) for name in targets}
    return made, (RNG.normal(size=(24, 6)), targets, weights)


def vectorised_text():
    texts = np.array(["one two three", "two two", "four one", "three four five six", "six"] * 5)[:24]
    vectorise = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
    vectorise.adapt(texts)
    data = tf.data.Dataset.from_tensor_slices((texts, LABELS)).batch(10)
    data = data.map(lambda text, label: (vectorise(text), label))
    inner = layers.Embedding(10, 4, mask_zero=True), layers.LSTM(5), layers.Dense(3)
    made = stack(*inner, given=(4,), dtype="int64")
    return compiled(made, crossentropy(), keras.optimizers.Lion(0.003)), (data,)


def looked_up_in_the_model():
    words = keras.Input((), dtype="string", name="word")
    numbers = keras.Input((1,), name="number")
    lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
    scaled = layers.Normalization(mean=[0.5], variance=[2.0])(numbers)
    bins = layers.Discretization(bin_boundaries=[-1.0, 0.0, 1.0], output_mode="one_hot")(numbers)
    x = layers.Concatenate()([lookup(words), scaled, bins])
    made = keras.Model([words, numbers], layers.Dense(1, kernel_regularizer="l1")(x))
    named = np.array(["red", "blue", "none", "green"] * 6)
    data = {"word": tf.constant(named), "number": RNG.normal(size=(24, 1))}
    return compiled(made, "mse", keras.optimizers.Ftrl(0.1)), (data, NEXT[:, :1])


def connectionist():
    """A loss for labels that are not aligned with what is heard."""
    made = stack(layers.Bidirectional(layers.LSTM(4, return_sequences=True)), layers.Dense(5), given=(7, 2))
    labels = RNG.integers(1, 5, (24, 3))
    return compiled(made, keras.losses.CTC(), keras.optimizers.SGD(0.01)), (SERIES, labels)


def video():
    inner = (
        layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True),
        layers.TimeDistributed(layers.GlobalMaxPooling2D()),
        layers.Masking(),
        layers.SimpleRNN(4),
        layers.Dense(3),
    )
    frames = RNG.normal(size=(24, 3, 4, 4, 2))
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    made = compiled(stack(*inner, given=(3, 4, 4, 2)), loss, metrics=["categorical_accuracy"])
    return made, (frames, np.eye(3)[LABELS])


def grouped_queries():
    x = keras.Input((6, 8))
    heard = layers.GroupQueryAttention(4, 4, 2)(x, x, use_causal_mask=True)
    made = keras.Model(
        x, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.RMSNormalization()(heard + x)))
    )
    optimizer = keras.optimizers.Lamb(keras.optimizers.schedules.CosineDecay(0.01, 4))
    return compiled(made, keras.losses.CosineSimilarity(), optimizer), (RNG.normal(size=(24, 6, 8)), NEXT)


def stopped_and_saved():
    """Ends by a callback, takes the weights of the best epoch, and saves those of every one."""
    made = stack(layers.Dense(4, "tanh"), layers.Dense(2))
    folder = tempfile.mkdtemp()
    saved = keras.callbacks.ModelCheckpoint(f"{folder}/{{epoch}}.weights.h5", save_weights_only=True)
    callbacks = [
        keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=1, restore_best_weights=True),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        saved,
    ]
    return compiled(made), (RNG.normal(size=(24, 6)), NEXT), {"callbacks": callbacks}


class PartlyRead(keras.Model):
    """One input is for the loss alone, one output for metrics alone."""

    def __init__(self):
        super().__init__()
        self.dense, self.error = layers.Dense(2), keras.metrics.Mean("error")

    def call(self, inputs):
        found = self.dense(inputs["x"])
        return {"found": found, "size": ops.sum(ops.square(found), axis=1)}

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        difference = ops.square(y - y_pred["found"]) * x["weight"]
        self.error.update_state(ops.sum(difference, axis=1))
        return ops.mean(difference)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {**self.get_metrics_result(), "error": self.error.result()}


def inputs_for_the_loss():
    made = PartlyRead()
    made.compile(keras.optimizers.Adafactor(0.01))
    return made, ({"x": RNG.normal(size=(24, 6)), "weight": RNG.uniform(size=(24, 1))}, NEXT)


EQUAL = {
    "vision transformer": vision_transformer,
    "U-Net": u_net,
    "text VAE with a divergence in a layer": text_vae,
    "masked autoencoder": masked_autoencoder,
    "neural style": neural_style,
    "two towers with negatives of the batch": two_towers,
    "WGAN with clipped weights": wasserstein_gan,
    "metric learning with a metric of its own": metric_learning,
    "series with states of a GRU": series_with_states,
    "focal loss with class weights": focal_with_class_weights,
    "named outputs, loss weights": named_outputs,
    "TextVectorization in the data": vectorised_text,
    "lookups in the model": looked_up_in_the_model,
    "CTC": connectionist,
    "video": video,
    "grouped queries": grouped_queries,
    "early stopping": stopped_and_saved,
    "inputs for the loss alone": inputs_for_the_loss,
}
