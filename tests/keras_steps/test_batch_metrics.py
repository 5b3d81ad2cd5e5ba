"""Metrics that layers and losses update while a slice is traced, as Keras has them."""

import keras
import numpy as np
import pytest
from compared_fits import assert_that_of_keras
from families import long
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)).astype("float32"), RNG.normal(size=(20, 1)).astype("float32")
FIT = {"batch_size": 8, "shuffle": False, "verbose": 0}


class Weighing(keras.Model):
    """Tells what its weights and its optimizer are after a step."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        told = super().compute_metrics(x, y, y_pred, sample_weight)
        steps = ops.cast(self.optimizer.iterations, "float32")
        return {**told, "size": ops.sum(self.trainable_variables[0] ** 2), "steps": steps}


@pytest.mark.parametrize("home", ["partitioned", *long("shared", "mirrored")])
def test_metrics_read_weights_as_the_step_has_left_them(home):
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 3, "variables": home})):
        keras.utils.set_random_seed(0)
        x = keras.Input([3])
        made = Weighing(x, keras.layers.Dense(1)(x))
        made.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
        both.append(fit(made, X, Y, epochs=2, **FIT, **more).history)
    assert both[0].keys() == both[1].keys()
    for name, values in both[0].items():
        np.testing.assert_allclose(both[1][name], values, rtol=1e-5, err_msg=name)


class Watched(keras.layers.Layer):
    """Has metrics of what goes through it, in training or without; and counts how often it is called."""

    def __init__(self, when):
        super().__init__()
        self.when = when
        self.seen, self.calls = keras.metrics.Mean(name="seen"), keras.metrics.Sum(name="calls")

    def call(self, x, training=False):
        if training == self.when:
            self.seen.update_state(x)
            self.calls.update_state(1)
        return x


@pytest.mark.parametrize("when", [True, *long(False)])
def test_a_look_without_training_leaves_the_metrics_of_the_training_alone(when):
    """Behind dropout, for which the first batch is looked at in another way too."""
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 4})):
        keras.utils.set_random_seed(0)
        inner = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        made = keras.Sequential([keras.Input([3]), Watched(when), *inner])
        made.compile("sgd", "mse")
        both.append(fit(made, X, Y, **FIT, **more).history)
    names = {"loss", "seen", "calls"}
    assert both[0].keys() == both[1].keys() == names
    for name in ("seen", "calls"):
        np.testing.assert_allclose(both[1][name], both[0][name], rtol=1e-5, err_msg=name)
    assert both[0]["calls"] == [3.0 if when else 0.0]


class ByStructure(keras.Sequential):
    """A mean without weights, and with weights a sum: no structure of a batch tells of another."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if sample_weight is None:
            return ops.mean((y - y_pred) ** 2)
        return ops.sum(sample_weight[:, None] * (y - y_pred) ** 2)


def test_every_structure_of_a_batch_is_looked_at():
    weight, both = RNG.uniform(size=8).astype("float32"), []
    for on_batch, more in ((keras.Model.train_on_batch, {}), (cn.train_on_batch, {"devices": 2})):
        keras.utils.set_random_seed(0)
        made = ByStructure([keras.Input([3]), keras.layers.Dense(1)])
        made.compile(keras.optimizers.Adam(0.01))
        losses = [on_batch(made, X[:8], Y[:8], w, **more) for w in (None, weight, None, weight)]
        both.append([*losses, *(value.ravel() for value in made.get_weights())])
    for one, other in zip(*both, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


class Heads(keras.Model):
    """Another thing without training, as detectors have it, of which its loss is not made."""

    def __init__(self):
        super().__init__()
        self.norm, self.answer = keras.layers.BatchNormalization(), keras.layers.Dense(1)

    def call(self, x, training=False):
        found = self.answer(self.norm(x, training=training))
        return found if training else {"boxes": found, "scores": found}


def test_a_model_that_gives_something_else_without_training_is_trained_and_it_is_said():
    keras.utils.set_random_seed(0)
    made = Heads()
    made.compile("sgd", "mse")
    with pytest.warns(UserWarning, match=r"not proved on the first batch: .*with training=False"):
        history = cn.fit(made, X, Y, devices=2, **FIT).history
    assert np.isfinite(history["loss"]).all()


def test_a_model_of_which_all_is_frozen_is_refused_by_name():
    made = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)], name="frozen")
    made.trainable = False
    made.compile("sgd", "mse")
    with pytest.raises(cn.InvalidArgument, match=r"model='frozen': has no trainable weights.*cn.evaluate"):
        cn.fit(made, X, Y, devices=2, **FIT)


class Usage(keras.layers.Layer):
    """Tells how often each of three codes is used, and a number of its own that no batch is in."""

    def __init__(self):
        super().__init__()
        self.used, self.three = keras.metrics.Mean(name="used"), keras.metrics.Mean(name="three")
        self.count = self.add_weight(shape=(), dtype="int32", initializer="ones", trainable=False)

    def call(self, x):
        self.used.update_state(ops.mean(ops.softmax(x), axis=0) * ops.arange(3.0))
        self.three.update_state(self.count + 2)
        return x


@pytest.mark.parametrize("rows", [7, 6], ids=["uneven slices", "as many codes as examples"])
def test_a_vector_that_is_not_of_examples_is_a_mean_and_a_number_is_itself(rows):
    def make():
        made = keras.Sequential([keras.Input([3]), Usage(), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    assert_that_of_keras(make, X[:rows], Y[:rows])


class Leaves(keras.Model):
    """Its metrics read what the call has left in an attribute."""

    def __init__(self):
        super().__init__()
        self.answer, self.size = keras.layers.Dense(1), keras.metrics.Mean("size")

    def call(self, x):
        self.found = self.answer(x)
        return self.found

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.size.update_state(self.found)
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.parametrize("prove", [True, False])
def test_metrics_of_what_the_call_has_left_in_an_attribute_are_refused_by_name(prove):
    made = Leaves()
    made.compile("sgd", "mse")
    with pytest.raises(cn.InvalidArgument, match=r"compute_metrics='Leaves': reads what call has left"):
        cn.fit(made, X, Y, devices=2, prove=prove, **FIT)
