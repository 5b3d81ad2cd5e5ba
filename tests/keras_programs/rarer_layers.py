"""Layers, and ways to put them together, that the guides show and few programs have."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from keras_programs.plain_steps import compiled, crossentropy, stack

RNG = np.random.default_rng(31)
FLAT, TARGET = RNG.normal(size=(24, 6)), RNG.normal(size=(24, 2))
LABELS = RNG.integers(0, 3, 24)
IDS = RNG.integers(1, 9, (24, 7)) * (np.arange(7) < RNG.integers(2, 8, 24)[:, None])
SHORT = RNG.integers(1, 9, (24, 4))
SERIES, IMAGES = RNG.normal(size=(24, 6, 3)), RNG.normal(size=(24, 8, 8, 2))
TEXTS = np.array(["red green", "blue", "green green red", "blue new", "", "red"] * 4)


class TiedWeights(keras.Model):
    """The table of words is the last layer as well."""

    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(9, 5)
        self.inner = layers.LSTM(5, return_sequences=True)

    def call(self, ids):
        return ops.matmul(self.inner(self.words(ids)), ops.transpose(self.words.embeddings))


def tied_weights():
    return compiled(TiedWeights(), crossentropy(), metrics=["accuracy"]), (IDS, IDS)


def reversible_embedding():
    table, given = layers.ReversibleEmbedding(9, 5), keras.Input([7], dtype="int64")
    made = keras.Model(given, table(layers.Dense(5, "tanh")(table(given)), reverse=True))
    return compiled(made, crossentropy()), (IDS, IDS)


def one_table_for_two_inputs():
    one, other = keras.Input([7], dtype="int64"), keras.Input([4], dtype="int64")
    table = layers.Embedding(9, 5, mask_zero=True)
    tower = layers.GRU(4)
    near = layers.Dot(axes=1, normalize=True)([tower(table(one)), tower(table(other))])
    return compiled(keras.Model([one, other], near), "mse"), ([IDS, SHORT], TARGET[:, :1])


class Decorated(keras.Model):
    """Its call is a tf.function, as in programs from before Keras 3."""

    def __init__(self):
        super().__init__()
        self.words, self.answer = layers.Embedding(9, 5), layers.Dense(2)

    def build(self, shape):
        self.words.build(shape)
        self.answer.build((None, 5))

    @tf.function
    def call(self, ids, training=False):
        found = tf.zeros([tf.shape(ids)[0], 5], keras.config.floatx())
        for i in range(3):
            found = found + self.words(ids[:, i])
        return self.answer(found)


def decorated_call():
    return compiled(Decorated(), metrics=["mae"]), (IDS, TARGET)


class Leaky(layers.Layer):
    """A cell of somebody's own."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units
        self.inner, self.again = layers.Dense(units), layers.Dense(units, use_bias=False)

    def build(self, shape):
        self.inner.build(shape)
        self.again.build((None, self.units))

    def call(self, x, states):
        found = 0.5 * states[0] + 0.5 * ops.tanh(self.inner(x) + self.again(states[0]))
        return found, [found]


def cells():
    given = keras.Input([6, 3])
    stacked = layers.RNN([Leaky(4), layers.GRUCell(4)], return_sequences=True, unroll=True)(given)
    back = layers.SimpleRNN(3, go_backwards=True)(stacked)
    one, other = layers.GRU(3), layers.LSTM(3, go_backwards=True)
    both = layers.Bidirectional(one, backward_layer=other, merge_mode="mul")(stacked)
    made = keras.Model(given, layers.Dense(2)(layers.Average()([back, both])))
    return compiled(made, "huber"), (SERIES, TARGET)


def masked_attention():
    """Padding and a causal mask together; the scores are an output that nobody trains."""
    ids = keras.Input([None], dtype="int64")
    x = layers.Embedding(9, 8, mask_zero=True)(ids)
    heard, scores = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True, return_attention_scores=True)
    x = layers.LayerNormalization()(layers.Add()([x, heard]))
    looked = layers.Attention(use_scale=True, score_mode="concat")([x, x])
    added = layers.AdditiveAttention()([looked, x])
    made = keras.Model(ids, [layers.TimeDistributed(layers.Dense(9))(added), scores])
    return compiled(made, [crossentropy(), None], metrics=[["accuracy"], []]), (IDS, IDS)


def small_generator():
    """As the miniature GPT: two outputs, of which one has a loss."""
    ids = keras.Input([7], dtype="int32")
    places = layers.Embedding(7, 8)(ops.arange(7))
    x = layers.Embedding(9, 8)(ids) + places
    x = layers.LayerNormalization(epsilon=1e-6)(
        x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    )
    made = keras.Model(ids, [layers.Dense(9)(x), x])
    made.compile("adam", loss=[crossentropy(), None])
    data = tf.data.Dataset.from_tensor_slices((IDS[:, ::-1].astype("int32"), IDS)).batch(10)
    return made, (data,)


def norms_of_images():
    inner = (
        layers.Conv2D(4, 3, padding="same"), layers.GroupNormalization(2), layers.PReLU(shared_axes=[1, 2]),
        layers.Conv2DTranspose(4, 3, 2, "same"), layers.LayerNormalization(axis=[1, 2, 3]),
        layers.LeakyReLU(0.2), layers.ZeroPadding2D(1), layers.Cropping2D(((1, 0), (0, 1))),
        layers.AveragePooling2D(3), layers.UnitNormalization(), layers.SeparableConv2D(3, 2),
        layers.GlobalMaxPooling2D(keepdims=True), layers.Flatten(), layers.Dense(3),
    )  # fmt: skip
    return compiled(stack(*inner, given=(8, 8, 2)), crossentropy()), (
        IMAGES,
        LABELS,
    )


def unequal_ranks():
    """A number, a picture, a series and an id for each example."""
    number, image = keras.Input([], name="number"), keras.Input([8, 8, 2], name="image")
    series, kind = keras.Input([6, 3], name="series"), keras.Input([], dtype="int32", name="kind")
    parts = [
        layers.Reshape([1])(number),
        layers.GlobalAveragePooling2D()(layers.Conv2D(3, 3)(image)),
        layers.Bidirectional(layers.LSTM(2))(series),
        layers.Embedding(4, 3)(kind),
    ]
    x = layers.Dense(4, "gelu")(layers.Concatenate()(parts))
    made = keras.Model(
        [number, image, series, kind], {"value": layers.Dense(1)(x)[:, 0], "sum": ops.sum(x, 1)}
    )
    made.compile(
        "adam",
        {"value": "mse", "sum": "mae"},
        metrics={"value": ["mae"]},
        loss_weights={"value": 1.0, "sum": 0.3},
    )
    x = {"number": FLAT[:, 0], "image": IMAGES, "series": SERIES, "kind": RNG.integers(0, 4, 24)}
    return made, (x, {"value": TARGET[:, 0], "sum": TARGET[:, 1]})


def texts_in_the_model():
    text, word, number = (
        keras.Input([], dtype="string"),
        keras.Input([1], dtype="string"),
        keras.Input([1], dtype="int64"),
    )
    read = layers.TextVectorization(vocabulary=["red", "green", "blue"], output_sequence_length=4)
    counted = layers.TextVectorization(
        vocabulary=["red", "green", "blue"], output_mode="tf_idf", idf_weights=[0.5, 1, 2]
    )
    lookup = layers.IntegerLookup(vocabulary=[1, 2, 3], output_mode="count")
    crossed = layers.HashedCrossing(8, output_mode="one_hot")((word, number))
    x = layers.LSTM(4)(layers.Embedding(6, 3, mask_zero=True)(read(text)))
    x = layers.Concatenate()([x, counted(text), lookup(number), crossed])
    made = keras.Model([text, word, number], layers.Dense(2)(x))
    given = [tf.constant(TEXTS), tf.constant(TEXTS[:, None]), RNG.integers(0, 5, (24, 1))]
    return compiled(made), (given, TARGET)


def feature_space():
    columns = {"age": RNG.uniform(18, 80, 24), "kind": RNG.integers(0, 4, 24), "place": TEXTS}
    space = keras.utils.FeatureSpace(
        features={
            "age": keras.utils.FeatureSpace.float_normalized(),
            "kind": keras.utils.FeatureSpace.integer_categorical(num_oov_indices=0),
            "place": keras.utils.FeatureSpace.string_hashed(num_bins=5),
        },
        crosses=[keras.utils.FeatureSpace.cross(("kind", "place"), crossing_dim=6)],
        output_mode="concat",
    )
    data = tf.data.Dataset.from_tensor_slices((columns, TARGET))
    space.adapt(data.map(lambda x, y: x).batch(8))
    found = layers.Dense(2)(layers.Dense(4, "relu")(space.get_encoded_features()))
    made = keras.Model(space.get_inputs(), found)
    return compiled(made), (data.batch(10),)


class Citations(keras.Model):
    """The nodes of one graph, which the model holds; a batch says of which nodes to tell."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(3)
        self.nodes, self.edges = ops.convert_to_tensor(rng.normal(size=(12, 5))), rng.integers(0, 12, (2, 40))
        self.inner, self.sent, self.answer = layers.Dense(4), layers.Dense(4, "gelu"), layers.Dense(3)
        self.norm = layers.BatchNormalization()

    def call(self, places, training=False):
        x = self.norm(self.inner(self.nodes), training=training)
        heard = ops.segment_sum(ops.take(self.sent(x), self.edges[0], axis=0), self.edges[1], 12)
        return self.answer(ops.take(ops.normalize(x + heard), places, axis=0))


def citations():
    return compiled(Citations(), crossentropy(), metrics=["acc"]), (RNG.integers(0, 12, 24), LABELS)


@tf.custom_gradient
def reversed_gradient(x):
    return x, lambda upstream: -0.3 * upstream


def two_domains():
    """As domain adversarial training."""
    given = keras.Input([6])
    x = layers.Dense(5, "tanh")(given)
    kind = layers.Dense(3, name="kind")(x)
    domain = layers.Dense(1, "sigmoid", name="domain")(layers.Lambda(reversed_gradient)(x))
    made = keras.Model(given, [kind, domain])
    compiled(
        made,
        [crossentropy(), "binary_crossentropy"],
        metrics=[["accuracy"], ["AUC"]],
        loss_weights=[1.0, 0.5],
    )
    return made, (FLAT, [LABELS, (LABELS > 1).astype("float64")[:, None]])


class Orthogonal(keras.regularizers.Regularizer):
    """Of PointNet: a matrix of each example shall be orthogonal, summed over the examples."""

    def __call__(self, x):
        x = ops.reshape(x, (-1, 3, 3))
        apart = ops.matmul(x, ops.transpose(x, (0, 2, 1))) - ops.eye(3, dtype=x.dtype)
        return 0.01 * ops.sum(ops.square(apart))


class UnitColumns(keras.constraints.Constraint):
    def __call__(self, w):
        return w / ops.sqrt(ops.sum(ops.square(w), axis=0, keepdims=True) + 1e-7)


def points():
    given = keras.Input([6, 3])
    inner = layers.GlobalMaxPooling1D()(
        layers.Conv1D(5, 1, activation="relu", kernel_constraint=UnitColumns())(given)
    )
    nothing = keras.initializers.Constant(np.eye(3).flatten())
    turn = layers.Dense(
        9, kernel_initializer="zeros", bias_initializer=nothing, activity_regularizer=Orthogonal()
    )(inner)
    turned = layers.Dot(axes=(2, 1))([given, layers.Reshape((3, 3))(turn)])
    made = keras.Model(given, layers.Dense(3)(layers.GlobalAveragePooling1D()(turned)))
    return compiled(made, crossentropy(), metrics=["sparse_categorical_accuracy"]), (SERIES, LABELS)


def dims_of_many_kinds():
    given = keras.Input([6, 3])
    x = layers.EinsumDense("btc,cd->btd", output_shape=(6, 4), bias_axes="d", activation="silu")(given)
    x = layers.Conv1DTranspose(4, 3, padding="same", strides=2)(x)
    x = layers.Permute((2, 1))(layers.DepthwiseConv1D(3, depth_multiplier=2)(x))
    x = layers.Maximum()([x, layers.Minimum()([x * 2, x - 1])])
    made = keras.Model(given, layers.Dense(2)(layers.Flatten()(x)))
    return compiled(made, keras.losses.LogCosh()), (SERIES, TARGET)


def video():
    inner = (
        layers.ConvLSTM2D(2, 3, padding="same", return_sequences=True),
        layers.Conv3D(2, 3, padding="same", activation="tanh"),
        layers.TimeDistributed(layers.Conv2D(2, 3)),
        layers.Flatten(),
        layers.Dense(2),
    )
    return compiled(stack(*inner, given=(3, 6, 6, 1))), (RNG.normal(size=(24, 3, 6, 6, 1)), TARGET)


def something_may_be_missing():
    """An input that nobody gave."""

    class Both(layers.Layer):
        def call(self, x, more=None):
            return x if more is None else x + more

        def compute_output_shape(self, x_shape, more_shape=None):
            return x_shape

    one, other = keras.Input([6], name="one"), keras.Input([6], name="other", optional=True)
    made = keras.Model({"one": one, "other": other}, layers.Dense(2)(Both()(one, other)))
    return compiled(made), ({"one": FLAT, "other": None}, TARGET)


class Squeezed(keras.Model):
    """A number for each example, without a dim of its own."""

    def __init__(self):
        super().__init__()
        self.inner, self.answer = layers.Dense(4, "relu"), layers.Dense(1)

    def call(self, x):
        return ops.squeeze(self.answer(self.inner(x)), axis=-1)


def squeezed():
    return compiled(Squeezed(), "mse", metrics=["mae"]), (FLAT, TARGET[:, 0])


class OfPython(layers.Layer):
    """A part in NumPy, which has no gradient."""

    def call(self, x):
        scale = tf.numpy_function(
            lambda a: np.abs(a).max(axis=1, keepdims=True), [ops.stop_gradient(x)], x.dtype
        )
        return x / (1 + tf.ensure_shape(scale, [None, 1]))


def parts_in_python():
    return compiled(stack(OfPython(), layers.Dense(2))), (FLAT, TARGET)


def nested_models():
    """Models in models, one of them twice; names that come again."""
    block = stack(layers.Dense(6, "tanh", name="dense"), layers.Dense(6, name="again"))
    outer = keras.Sequential([keras.Input([6]), block, layers.Dense(6, "relu", name="dense"), block])
    given = keras.Input([6])
    made = keras.Model(given, layers.Dense(2, name="dense")(layers.Add()([outer(given), block(given)])))
    return compiled(made, metrics=["mse"]), (FLAT, TARGET)


def structured():
    """Nests of inputs and of outputs."""
    one, two, three = (keras.Input([2], name=name) for name in ("one", "two", "three"))
    x = layers.Concatenate()([one, two, three])
    found = {
        "b": [layers.Dense(2, name="p")(x), layers.Dense(1, name="q")(x)],
        "a": layers.Dense(1, name="r")(x),
    }
    made = keras.Model({"first": one, "rest": [two, three]}, found)
    made.compile("sgd", {"b": ["mse", "mae"], "a": "mse"})
    x = {"first": FLAT[:, :2], "rest": [FLAT[:, 2:4], FLAT[:, 4:]]}
    return made, (x, {"b": [TARGET, TARGET[:, :1]], "a": TARGET[:, 1:]})


def spectra():
    inner = (
        layers.Reshape((64, 1)),
        layers.STFTSpectrogram(frame_length=16, frame_step=8, fft_length=16),
        layers.Flatten(),
        layers.Dense(2),
    )
    return compiled(stack(*inner, given=(64,))), (RNG.normal(size=(24, 64)), TARGET)


EQUAL = {
    "tied weights": tied_weights,
    "ReversibleEmbedding": reversible_embedding,
    "one table for two inputs": one_table_for_two_inputs,
    "a call that is a tf.function": decorated_call,
    "cells of many kinds": cells,
    "padding and a causal mask": masked_attention,
    "miniature GPT": small_generator,
    "norms of images": norms_of_images,
    "inputs of unequal ranks": unequal_ranks,
    "texts in the model": texts_in_the_model,
    "FeatureSpace": feature_space,
    "citations of one graph": citations,
    "reversed gradients": two_domains,
    "PointNet": points,
    "dims of many kinds": dims_of_many_kinds,
    "frames": video,
    "an optional input": something_may_be_missing,
    "a number for each example": squeezed,
    "a part in Python": parts_in_python,
    "nested models": nested_models,
    "nests of inputs and outputs": structured,
    "STFTSpectrogram": spectra,
}
