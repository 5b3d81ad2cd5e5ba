"""What a first batch does not show: programs that later batches, or later weights, make another thing of."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from compared_fits import X, Y, assert_that_of_keras, dense
from keras import ops

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.prove.second_looks import ProvedSizes, at_rest, bounds_said, with_gaps
from colonnade.run.trace.traced import trace


class Annealed(keras.Sequential):
    """A penalty that sums, with a weight that a callback raises."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean((y_pred - y) ** 2) + self.beta * ops.sum(y_pred**2)


class AnnealedStep(keras.Sequential):
    """The same in a step of its own, with a plain variable."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            given = self(x)
            loss = ops.mean((given - y) ** 2) + self.beta * ops.sum(given**2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


def raised(made):
    return [keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: made.beta.assign(0.5 * epoch))]


def test_a_weight_that_is_raised_later_hides_no_sum():
    def make():
        made = dense(Annealed)
        made.beta = keras.Variable(0.0, trainable=False, name="beta")
        return made

    assert_that_of_keras(make, callbacks=raised)


def test_nor_in_a_step_of_its_own_which_is_refused_by_the_name_of_the_weight():
    made = dense(AnnealedStep)
    made.beta = tf.Variable(0.0, name="beta")
    with pytest.raises(cn.InvalidArgument, match=r"first batch.*where beta is 1 and not 0"):
        cn.fit(made, X, Y, batch_size=8, devices=2, verbose=0)
    assert made.beta.numpy() == 0


IDS = np.random.default_rng(0).integers(1, 9, (16, 4))
IDS[8:, 2:] = 0  # the first batch has no padding
IDS[12:, 1:] = 0


def of_tokens(y, given):
    mask = ops.cast(y != 0, "float32")
    each = keras.losses.sparse_categorical_crossentropy(y, given, from_logits=True)
    return ops.sum(mask * each) / ops.sum(mask)


def test_a_first_batch_without_padding_hides_no_quotient():
    def make():
        layers = [keras.layers.Embedding(9, 5), keras.layers.Dense(9)]
        made = keras.Sequential([keras.Input([4], dtype="int32"), *layers])
        made.compile(keras.optimizers.SGD(0.1), of_tokens)
        return made

    assert_that_of_keras(make, IDS, IDS)


class Pairs(keras.Sequential):
    """Compares the examples of a pair, one after the other in a batch."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        rows = ops.shape(y_pred)[0]
        whole = 2 * (rows // 2) if self.leaves_out else rows
        pairs = ops.reshape(y_pred[:whole], (-1, 2, 6))
        return ops.mean((pairs[:, 0] - pairs[:, 1] - y[:whole:2]) ** 2)


def pairs(*, leaves_out):
    made = dense(Pairs)
    made.leaves_out = leaves_out
    return made


def test_pairs_that_only_slices_of_a_later_size_cut():
    assert_that_of_keras(lambda: pairs(leaves_out=True), X[:14], Y[:14])


def test_a_later_size_that_a_model_does_not_take_is_one_error_with_its_line():
    with pytest.raises(cn.InvalidArgument, match=r"not take a slice of 3 examples.*test_second_looks.py:\d+"):
        cn.fit(pairs(leaves_out=False), X[:14], Y[:14], batch_size=8, devices=2, shuffle=False, verbose=0)


class Bounded(AnnealedStep):
    """Keeps a number between bounds, as adaptive augmentation does."""

    def train_step(self, data):
        logs = super().train_step(data)
        self.chance.assign(ops.clip(self.chance + ops.mean(ops.sign(data[1][:, 0])), 0, 1))
        return logs


def test_a_bound_that_only_some_slices_will_reach_is_warned_of():
    made = dense(Bounded)
    made.beta, made.chance = 0.0, tf.Variable(0.0, trainable=False, name="chance")
    y = -np.abs(Y)  # on the first batch all slices are at the bound
    with pytest.warns(UserWarning, match="what variable 'chance:0' is given goes through M"):
        cn.fit(made, X, y, batch_size=8, devices=2, verbose=0)


def test_gaps_are_in_the_first_slice_and_where_something_may_be_missing():
    given = {"tokens": IDS[:4], "ages": np.arange(1, 5), "names": np.array(["a"] * 4)}
    targets = np.array([[3, -1], [2, 2], [1, 1], [4, 4]])
    batch = Arguments((X[:4], given, targets, np.ones(4, "float32")), {}, ["x", "more", "y", "weight"])
    found = {leaf.path: leaf.value.numpy().tolist() for leaf in with_gaps(batch, (2, 2)).leaves}
    np.testing.assert_array_equal(found["x"], X[:4])
    np.testing.assert_array_equal(found["more['tokens']"][:2], [[*row[:2], 0, 0] for row in IDS[:2]])
    np.testing.assert_array_equal(found["more['tokens']"][2:], IDS[2:4])
    assert found["more['ages']"] == [0, 2, 3, 4]
    assert found["y"] == [[3, -1], [2, -1], [1, 1], [4, 4]]
    assert found["weight"] == [0, 1, 1, 1]
    images = Arguments((X[:4],), {}, ["x"])
    assert with_gaps(images, (2, 2)) is images


def test_weights_at_rest_are_those_that_something_is_made_of():
    weight, other, kernel = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0.0)

    def loss(x):
        other.assign_add(1.0)
        return tf.reduce_sum(weight * x * kernel)

    traced = trace(loss, tf.TensorSpec([3]))
    assert [v.ref() for v in at_rest(traced, traced.outputs, [kernel])] == [weight.ref()]
    weight.assign(1.0)
    assert not at_rest(traced, traced.outputs, [kernel])


def test_bounds_are_those_behind_a_mean_of_the_slice():
    inside, behind = tf.Variable(0.0), tf.Variable(0.0, name="behind")

    def step(x):
        inside.assign(tf.reduce_mean(tf.minimum(x, 1.0)))
        behind.assign(0.9 * behind + tf.minimum(tf.reduce_mean(x), 1.0))
        return tf.reduce_mean(x)

    traced = trace(step, tf.TensorSpec([3]))
    (said,) = bounds_said(traced, [])
    assert "variable 'behind:0' is given goes through Minimum" in said
    assert not list(bounds_said(traced, [behind.ref()]))


def test_sizes_show_more_where_they_cut_what_was_whole():
    sizes = ProvedSizes()
    for counts, more in (
        ((8, 8), True),
        ((16, 16), False),
        ((4, 4), True),
        ((8, 4), True),
        ((12, 8), False),
        ((3, 3), True),
        ((5, 5), False),
        ((5,), False),
    ):
        assert sizes.shows_more("kind", counts) is more, counts
        if more:
            sizes.note("kind", counts)
    assert sizes.shows_more(SimpleNamespace, (5, 5))
