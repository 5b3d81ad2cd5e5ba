"""Models of many kinds of layers in a pipeline: nested, called twice, with several inputs, masked."""

import keras
import numpy as np
import pytest
from families import long
from piped import DENSE, TOLERANCE, X, Y, assert_equal, classify, given, skips, train, with_weights

import colonnade as cn


def lstm():
    inputs = keras.Input([5, 4])
    x = inputs
    for _ in range(3):
        x = keras.layers.LSTM(6, return_sequences=True)(x)
    return with_weights(keras.Model(inputs, keras.layers.Dense(3)(x[:, -1])))


def conv():
    layers = keras.layers
    return with_weights(
        keras.Sequential(
            [
                keras.Input([6, 1]),
                layers.Conv1D(4, 3, activation="tanh"),
                layers.MaxPooling1D(),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("build", "x", "cut", "micro_batches"),
    [
        (conv, given([9, 6, 1], 1.0), [0, 1, 1, 2], 4),
        (skips, given([9, 6], 1.0), [0, 1, 2, 2, 2, 3, 3, 3], 4),
        *long(
            (lstm, given([9, 5, 4], 1.0), [0, 1, 2, 2, 2], 2),
            (lstm, given([9, 5, 4], 1.0), [0, 1, 2, 2, 2], 4),
        ),
    ],
    ids=["conv", "skips", "lstm", "lstm in four"],
)
def test_models_of_other_layers(build, x, cut, micro_batches):
    found = train(build, (x, Y[:9]), devices=max(cut) + 1, micro_batches=micro_batches, placement=cut)
    assert_equal(found, train(build, (x, Y[:9])))


class Block(keras.layers.Layer):
    """Layers inside whose call() has no argument `training`: Keras tells them all the same."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)

    def call(self, x):
        return self.drop(self.norm(x))


def test_layers_inside_a_layer_know_that_they_train():
    block = Block()
    pipeline = cn.Pipeline([block, DENSE(3)], 2, micro_batches=1)
    assert np.allclose(pipeline(X), pipeline(X))
    assert not np.allclose(pipeline(X, training=True), pipeline(X, training=True))
    before = block.norm.moving_mean.numpy()
    cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.0), devices=pipeline).train_on_batch(X, Y)
    np.testing.assert_allclose(block.norm.moving_mean, (before + X.mean(axis=0)) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False, None])
def test_layers_behind_a_dropout_know_that_they_train(training):
    """Keras 3.15 notes the default of Dropout's `training`, False, with the call that made the model."""
    seen = []

    class Seen(keras.layers.Layer):
        def call(self, x, training="unset"):
            seen.append(training)
            return x

    inputs = keras.Input([6])
    drop, norm = keras.layers.Dropout(0.5, seed=1), keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Model(inputs, DENSE(3)(Seen()(norm(drop(inputs)))))
    pipeline = cn.Pipeline(model, 2, micro_batches=1, placement=[0, 0, 0, 1])
    seen.clear()
    model(X, training=training)
    wanted, average = seen.copy(), norm.moving_mean.numpy()
    norm.moving_mean.assign(np.zeros([6]))
    seen.clear()
    pipeline(X, training=training)
    assert wanted
    assert set(seen) == set(wanted)
    assert (norm.moving_mean.numpy() != 0).any() == (average != 0).any() == (training is True)


def test_inputs_of_a_functional_model_are_found_by_name_and_cast():
    first, second = keras.Input([2], name="b"), keras.Input([2], name="a")
    model = keras.Model([first, second], DENSE(1)(keras.layers.Subtract()([first, second])))
    pipeline = cn.Pipeline(model, 2, micro_batches=1)
    a, b = np.ones([3, 2], "int32"), np.full([3, 2], 5, "uint8")
    wanted = model({"a": a, "b": b})
    for inputs in ({"a": a, "b": b}, {"b": b, "a": a}, [b, a]):
        np.testing.assert_allclose(pipeline(inputs), wanted, rtol=TOLERANCE)
    with pytest.raises(cn.InvalidArgument, match=r"called b, a\. Pass a"):
        pipeline({"b": b})


@pytest.mark.long
def test_a_mask_that_leaves_a_nested_model_is_refused():
    masked = keras.layers.Embedding(5, 4, mask_zero=True)
    inner = keras.Sequential([masked, keras.layers.LSTM(4, return_sequences=True)], name="inner")
    tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0]])
    outer = keras.Sequential([keras.Input([4]), inner, keras.layers.LSTM(2), DENSE(1)])
    symbol = keras.Input([4])
    functional = keras.Model(symbol, DENSE(1)(keras.layers.LSTM(2)(inner(symbol))))
    for model in (outer, functional):
        for placement in ("auto", [0, 1, 1]):
            with pytest.raises(cn.InvalidArgument, match="stages='inner': makes a mask"):
                cn.Pipeline(model, 2, micro_batches=1, placement=placement)(tokens)
        inside = cn.Pipeline(model, 2, micro_batches=1, placement=[0, 0, 1])
        np.testing.assert_allclose(inside(tokens), model(tokens), rtol=TOLERANCE, atol=TOLERANCE)


def nested():
    inside = keras.Input([6])
    inner = keras.Model(inside, DENSE(4, "tanh")(inside) * 2.0, name="inner")
    inputs = keras.Input([6])
    return with_weights(keras.Model(inputs, DENSE(3)(DENSE(5)(inner(inputs)))))


def test_a_functional_model_in_a_functional_model():
    assert cn.Pipeline(nested(), 1).layers[0] == "inner"
    found = train(nested, (X, Y), devices=2, micro_batches=2, placement=[0, 1, 1])
    assert_equal(found, train(nested, (X, Y)))


def twice():
    inputs = keras.Input([6])
    layer = DENSE(6, name="twice")
    return with_weights(keras.Model(inputs, DENSE(3)(layer(layer(inputs)))))


def test_a_layer_that_is_called_twice_has_two_places():
    together = train(twice, (X, Y), devices=2, micro_batches=2, placement=[0, 0, 1])
    assert_equal(together, train(twice, (X, Y)))
    with pytest.raises(cn.InvalidArgument, match=r"kernel.*is used by stages 0, 1, and is not declared"):
        train(twice, (X, Y), devices=2, micro_batches=2, placement=[0, 1, 1])
