"""What goes wrong with `cn.fit` that Keras would tell in the middle of something, or not at all."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 6)).astype("float32")
Y = RNG.normal(size=(16, 2)).astype("float32")


def model(**options):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input([6]), keras.layers.Dense(2)])
    made.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **options})
    return made


def test_a_model_of_a_strategy_is_refused():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        made = model()
        with pytest.raises(cn.InvalidArgument, match=r"MirroredStrategy.*outside of its scope"):
            cn.fit(model(), X, Y, devices=2)
        dense = keras.layers.Dense(2)
        dense.build((None, 6))
    with pytest.raises(cn.InvalidArgument, match=r"MirroredStrategy.*Make the model outside"):
        cn.fit(made, X, Y, devices=2)
    made = keras.Sequential([keras.Input([6]), dense])
    made.compile("sgd", "mse")
    with pytest.raises(cn.InvalidArgument, match=r"kernel.*Make the model outside"):
        cn.fit(made, X, Y, devices=2)


def test_a_model_that_is_compiled_again_while_it_is_trained():
    class Again(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.compile("sgd", "mae")

    made = model()
    with pytest.raises(cn.InvalidArgument, match="was compiled again while it was trained"):
        cn.fit(made, X, Y, devices=2, epochs=2, verbose=0, callbacks=[Again()])
    made.fit(X, Y, verbose=0)

    def of_the_user(epoch, logs):
        raise TypeError("of the user")

    raising = keras.callbacks.LambdaCallback(on_epoch_begin=of_the_user)
    with pytest.raises(TypeError, match="of the user"):
        cn.fit(model(), X, Y, devices=2, verbose=0, callbacks=[raising])


def test_a_missing_target():
    for given in ((X,), (tf.data.Dataset.from_tensor_slices(X).batch(8),)):
        with pytest.raises(cn.InvalidArgument, match=r"y=None: is missing.*loss='mse'.*Pass y"):
            cn.fit(model(), *given, devices=2, shuffle=False, verbose=0)


class Returns(keras.Model):
    """Returns something else than one value for each example, and has a loss of its own."""

    def __init__(self, result):
        super().__init__()
        self.dense, self.result = keras.layers.Dense(2), result
        self.compile(keras.optimizers.SGD(0.1))

    def call(self, x):
        return self.result(self.dense(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean((self.dense(x) - y) ** 2)


@pytest.mark.parametrize(
    ("result", "says"),
    [(ops.mean, "is a number for a slice"), (ops.transpose, r"is of shape \(2, 8\) for a slice of 8")],
)
def test_an_output_that_is_not_one_for_each_example_is_refused(result, says):
    with pytest.raises(cn.InvalidArgument, match=says):
        cn.fit(Returns(result), X, Y, devices=2, verbose=0)
    cn.fit(Returns(result), X, Y, devices=1, verbose=0)


def test_a_model_that_returns_nothing_is_refused_where_something_is_wanted():
    made = Returns(lambda _: None)
    cn.fit(made, X, Y, devices=2, verbose=0)  # its loss needs no prediction
    with pytest.raises(cn.InvalidArgument, match="is what its call returns"):
        cn.predict(made, X, devices=2, verbose=0)
    made.compile("sgd", "mse")
    for run in (cn.fit, cn.evaluate):
        with pytest.raises(cn.InvalidArgument, match="is what its call returns"):
            run(made, X, Y, devices=2, verbose=0)


def trained(fit, made, **options):
    keras.utils.set_random_seed(1)
    history = fit(made, X, Y, epochs=3, batch_size=6, shuffle=False, verbose=0, **options).history
    return history, made.get_weights()


def assert_equal_to_keras(make, **options):
    def on_two(*arguments, variables="auto", **rest):
        return cn.fit(*arguments, devices=2, variables=variables, **rest)

    keras.utils.set_random_seed(0)
    expected, weights = trained(keras.Model.fit, make(), callbacks=options["callbacks"]())
    keras.utils.set_random_seed(0)
    history, found = trained(on_two, make(), **{**options, "callbacks": options["callbacks"]()})
    for name in expected:
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-5, err_msg=name)
    for a, b in zip(found, weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_model_that_returns_nothing_trains():
    assert_equal_to_keras(lambda: Returns(lambda x: None), callbacks=list)


@pytest.mark.parametrize("home", kept(["shared", "mirrored", "partitioned"], "mirrored"))
def test_moving_averages_are_swapped_as_keras_swaps_them(home):
    def make():
        return model(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))

    swap = keras.callbacks.SwapEMAWeights
    assert_equal_to_keras(make, variables=home, callbacks=lambda: [swap(swap_on_epoch=True)])


def test_a_batch_that_is_one_graph_is_refused_with_the_rows_of_its_inputs():
    nodes, edges = keras.Input([3]), keras.Input([2])
    made = keras.Model([nodes, edges], keras.layers.Dense(1)(nodes))
    made.compile("sgd", "mse")
    graph = (np.ones([4, 3]), np.ones([6, 2])), np.ones([4, 1])
    data = tf.data.Dataset.from_tensors(graph)
    with pytest.raises(cn.InvalidArgument, match=r"'x\[0\]': 4, 'x\[1\]': 6.*cannot be cut into slices"):
        cn.fit(made, data, devices=2, shuffle=False, verbose=0)
    made.fit(data, shuffle=False, verbose=0)
