"""Arguments of a trainer and of its fit that cannot work: one error that names all of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from lines import X, Y, linear

import colonnade as cn


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"loss": 3}, "must be a function"),
        ({"optimizer": "adam"}, "Keras 3 optimizer"),
        ({"variables": "mirored"}, "auto, shared, mirrored, partitioned"),
        ({"on_nan": "ignore"}, "stop or skip"),
        ({"penalty": 0.1}, "without arguments"),
        ({"sync": "async"}, "cn.Synchronous"),
        ({"devices": 9}, "cn.setup(virtual=9)"),
        ({"reduce": "star"}, "must be one of auto"),
    ],
)
def test_bad_settings_of_the_trainer(arguments, says):
    settings = {"loss": lambda x: x, "optimizer": keras.optimizers.SGD(), **arguments}
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Trainer(settings.pop("loss"), settings.pop("optimizer"), **settings)
    assert says in str(caught.value)


def test_all_bad_settings_in_one_error():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Trainer(3, "adam", devices=9, sync=False, variables="x", on_nan="y")
    wrong = ["loss", "optimizer", "devices", "variables", "sync", "on_nan"]
    assert [p.argument for p in caught.value.problems] == wrong


@pytest.mark.parametrize(
    ("data", "arguments", "says"),
    [
        ((X, Y), {}, "batch_size=None"),
        ((X, Y[:9]), {"batch_size": 10}, "same number of rows"),
        ((X, Y), {"batch_size": 0}, "number of examples"),
        ((X, Y), {"batch_size": 10, "steps": 0, "log_every": -1}, "log_every=-1"),
        ((X, Y), {"batch_size": 10, "callbacks": [keras.callbacks.EarlyStopping()]}, "are for cn.fit"),
        ((X, Y), {"batch_size": 10, "callbacks": print}, "list of functions"),
        (iter([]), {}, "gave no batch"),
        (iter([(X, Y), (X[:0], Y[:0]), (X, Y)]), {}, "has no rows"),
        (5, {"batch_size": 10}, "tf.data.Dataset, arrays"),
    ],
)
def test_bad_data(data, arguments, says):
    _, trainer = linear()
    with pytest.raises(cn.InvalidArgument) as caught:
        trainer.fit(data, progress=False, **arguments)
    assert says in str(caught.value)


def test_losses_of_a_wrong_shape_and_functions_without_variables():
    w = tf.Variable(tf.ones([4, 1]))
    wrong = cn.Trainer(lambda x, y: (x @ w - y) ** 2, keras.optimizers.SGD(), devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"cn\.Weighted"):
        wrong.train_on_batch(X, Y)
    nothing = cn.Trainer(lambda x, y: tf.reduce_mean(x), keras.optimizers.SGD(), devices=2)
    with pytest.raises(cn.InvalidArgument, match="no trainable variable"):
        nothing.train_on_batch(X, Y)


def test_an_optimizer_of_other_variables_is_refused():
    w, optimizer = tf.Variable(1.0), keras.optimizers.SGD(0.1)
    optimizer.build([tf.Variable(1.0)])
    with pytest.raises(cn.InvalidArgument, match="built for other variables"):
        cn.Trainer(lambda x: x * w, optimizer, devices=2).train_on_batch(tf.ones([4]))


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.LocalSGD(2), cn.Asynchronous()], ids=repr)
def test_stateful_layers_are_refused_on_several_devices(sync):
    layer = keras.layers.LSTM(2, stateful=True, name="memory")
    made = keras.Sequential([keras.Input(batch_shape=[2, 3, 2]), layer])

    def trainer(devices):
        return cn.Trainer(
            lambda x: tf.reduce_sum(made(x) ** 2, 1), keras.optimizers.SGD(0.1), devices=devices, sync=sync
        )

    with pytest.raises(cn.InvalidArgument, match="memory") as caught:
        trainer(2).train_on_batch(np.ones([4, 3, 2], "float32"))
    assert "stateful=True" in str(caught.value)
    if isinstance(sync, cn.Synchronous):
        assert trainer(1).train_on_batch(np.ones([2, 3, 2], "float32")).step == 1
