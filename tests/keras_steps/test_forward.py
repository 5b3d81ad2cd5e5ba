"""What models predict in slices, held against one device on the first batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = RNG.normal(size=(16, 4)).astype("float32")


class Of(keras.layers.Layer):
    """A layer that computes a function."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def call(self, x):
        return self.fn(x)


class Norm(keras.layers.BatchNormalization):
    """As some image translators have it: with the statistics of the batch, also without training."""

    def call(self, x, training=None, mask=None):
        return super().call(x, training=True, mask=mask)


def model(*layers, kind=keras.Sequential):
    keras.utils.set_random_seed(0)
    made = kind([keras.Input([4]), keras.layers.Dense(4), *layers])
    made.compile("sgd", "mse")
    return made


def contracted(x):
    return x + tf.tensordot(x, x, 2)


def evaluated(made, **options):
    return cn.evaluate(made, X, Y, devices=2, verbose=0, **options)


def predicted(made, **options):
    return cn.predict(made, X, devices=2, verbose=0, **options)


MIXES = {
    "contracted": lambda: Of(contracted),
    "centred": lambda: Of(lambda x: x - ops.mean(x, axis=0, keepdims=True)),
    "batch norm": Norm,
}


MOST = [("centred", predicted), ("contracted", evaluated), ("centred", evaluated), ("batch norm", predicted)]


@pytest.mark.parametrize(
    ("mix", "call"), [("contracted", predicted), ("batch norm", evaluated), *long(*MOST)]
)
def test_examples_that_influence_each_other_are_refused_and_a_warning_goes_on(mix, call):
    made = model(MIXES[mix]())
    before = made.get_weights()
    with pytest.raises(cn.InvalidArgument, match=r"influence each other.*prediction differs.*devices=1"):
        call(made)
    for a, b in zip(made.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.warns(UserWarning, match="influence each other"):
        call(made, prove="warn")
    call(made, prove=False)


def test_validation_is_proved_too():
    """In training it is equal, and without it is not."""

    class Mixes(keras.layers.Layer):
        def call(self, x, training=False):
            return x if training else contracted(x)

    made = model(Mixes())
    cn.fit(made, X, Y, devices=2, verbose=0)
    with pytest.raises(cn.InvalidArgument, match=r"fit\(\).*\n.*influence each other"):
        cn.fit(made, X, Y, devices=2, validation_data=(X, Y), verbose=0)


@pytest.mark.long
def test_what_is_equal_is_said_and_random_numbers_are_told_apart(capsys):
    made = model(Norm(synchronized=True))
    expected = made.predict(X, verbose=0)
    np.testing.assert_allclose(cn.predict(model(Norm(synchronized=True)), X, devices=2), expected, atol=1e-6)
    assert capsys.readouterr().out.startswith("proved on the first batch: largest difference")
    cn.evaluate(model(Of(lambda x: keras.random.dropout(x, 0.5))), X, Y, devices=2)
    assert capsys.readouterr().out.startswith("not proved on the first batch: it draws random numbers")


class Classes(keras.Sequential):
    def predict_step(self, data):
        return ops.argmax(super().predict_step(data), axis=-1)


class Tie(keras.layers.Layer):
    """Two numbers that are equal but for a last digit, which is another one for slices of 8."""

    def build(self, _):
        self.scale = self.add_weight(shape=[2], initializer="ones")

    def call(self, x):
        last = np.float32(1 + np.sign((x.shape[0] or 16) - 12) * 1.2e-7)
        return ops.stack([x[:, 0] * self.scale[0], x[:, 0] * self.scale[1] * last], axis=-1)


def test_a_class_that_a_last_digit_decides_is_let_go_and_others_are_not(capsys):
    made = Classes([keras.Input([4]), Tie()])
    found = cn.predict(made, X, devices=2)
    assert (found != made.predict(X, verbose=0)).any()
    assert "proved on the first batch, but for choices that last digits decide" in capsys.readouterr().out
    with pytest.raises(cn.InvalidArgument, match="influence each other"):
        predicted(model(MIXES["centred"](), kind=Classes))


class Counts(keras.layers.Layer):
    def build(self, _):
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)

    def call(self, x):
        self.seen.assign_add(float(x.shape[0] or 0))
        self.calls.assign_add(1)
        return x


def test_what_a_layer_keeps_must_be_a_mean():
    made = model(Counts())
    with pytest.raises(cn.InvalidArgument, match=r"variable='.*seen': is given what is no mean"):
        predicted(made)
    assert float(made.layers[1].seen) == 0
    assert int(made.layers[1].calls) == 0


def words(text):
    return tf.strings.length(tf.strings.split(text[:, 0]).to_tensor())


class Looks(keras.Model):
    """Looks items up in a table that comes with the batch, and has as many rows."""

    def call(self, inputs):
        return ops.take(inputs["table"], inputs["items"], axis=0)


def test_what_fails_only_in_slices_is_told():
    texts = keras.Sequential([keras.Input([1], dtype="string"), Of(words)])
    with pytest.raises(cn.InvalidArgument, match=r"has other dims for each slice, \(2, 2\) and \(2, 1\)"):
        cn.predict(texts, tf.constant([["a b"], ["a"], ["b"], ["c"]]), devices=2, verbose=0)
    made, given = Looks(), {"items": np.arange(8)[::-1], "table": X[:8]}
    with pytest.raises(cn.InvalidArgument, match=r"fails in slices: indices.*split=\["):
        cn.predict(made, given, devices=2, verbose=0)
    found = cn.predict(made, given, devices=2, split=["items"], verbose=0)
    np.testing.assert_array_equal(found, X[:8][::-1])


class Asserts(keras.layers.Layer):
    def call(self, x):
        assert x.shape[0] in (None, 16), "only sixteen"
        return x


def recurrent():
    made = keras.Sequential([keras.Input(batch_shape=[16, 2, 2]), keras.layers.GRU(3, stateful=True)])
    made.compile("sgd", "mse")
    return made


def test_a_fixed_size_of_the_batch_is_one_error_with_the_line():
    fixed = model(Of(lambda x: ops.reshape(x, [16, 2, 2])))
    for made, said in (
        (fixed, r"reshape.*test_forward\.py"),
        (model(Asserts()), r"only sixteen.*test_forward\.py"),
    ):
        with pytest.raises(cn.InvalidArgument, match=rf"does not take a slice of 8 examples: .*{said}"):
            predicted(made)
        with pytest.raises(cn.InvalidArgument, match=rf"does not take a slice of 8 examples: .*{said}"):
            evaluated(made)
    with pytest.raises(cn.InvalidArgument, match="does not take a slice of 8 examples"):
        cn.predict(recurrent(), X.reshape(16, 2, 2), batch_size=16, devices=2, verbose=0)
