"""Numbers in the place of drawn ones: a slice has for its examples what the whole batch has for them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from compared_fits import X, dense
from keras import ops

import colonnade as cn
from colonnade.run.prove.fixed_draws import with_numbers_by_place
from colonnade.run.prove.numbers_by_place import DrawPlace, places
from colonnade.run.trace.traced import trace

SEED = keras.random.SeedGenerator(1)


def of_batch_and_slices(draw, counts=(3, 2), salt=0):
    """What a function of a batch gives for all of it, and for slices one after the other."""
    total = sum(counts)
    whole, *parts = (trace(draw, tf.TensorSpec([rows, 2])) for rows in (total, *counts))
    whole, parts = with_numbers_by_place(whole, parts, counts, salt)
    given = [[tf.ones([rows, 2])] for rows in (total, *counts)]
    found = [t.on("/device:CPU:0", x, {})[0].numpy() for t, x in zip((whole, *parts), given, strict=True)]
    return found[0], found[1:]


INNER = tf.function(lambda x: keras.random.uniform(x.shape, seed=SEED), autograph=False)


@pytest.mark.parametrize(
    ("draw", "axis"),
    [
        (lambda x: keras.random.uniform(x.shape, seed=SEED), 0),
        (lambda x: tf.random.normal(tf.shape(x), dtype="float16"), 0),
        (lambda x: keras.random.randint((x.shape[0], 4), 3, 90, seed=SEED), 0),
        (lambda x: keras.random.uniform((7, x.shape[0], 5), seed=SEED), 1),
        (lambda x: keras.random.uniform((3,), seed=SEED), None),
        (lambda x: tf.random.uniform((x.shape[0], 3), maxval=9, dtype="int32"), 0),
        (lambda x: keras.random.gamma((x.shape[0], 3), 2.0, seed=SEED), 0),
        (lambda x: keras.random.binomial((x.shape[0], 30), 1.0, 0.3, seed=SEED), 0),
        (lambda x: tf.random.poisson([3], x), 1),
        (lambda x: tf.random.gamma([], x), 0),
        (lambda x: tf.random.stateless_poisson([x.shape[0], 3], (1, 2), 2.0, "int32"), 0),
        (lambda x: tf.random.stateless_uniform([x.shape[0], 3], (1, 2), None, None, "int32"), 0),
        (lambda x: INNER(x), 0),
        (lambda x: tf.cond(x[0, 0] > 0, lambda: tf.random.uniform(tf.shape(x)), lambda: x), 0),
    ],
)
def test_slices_have_what_the_whole_batch_has_for_their_examples(draw, axis):
    whole, parts = of_batch_and_slices(draw)
    assert len(np.unique(whole)) > 1
    for part in parts if axis is None else ():
        np.testing.assert_array_equal(part, whole)
    if axis is not None:
        np.testing.assert_array_equal(np.concatenate(parts, axis), whole)
    others, _ = of_batch_and_slices(draw, salt=1)
    assert not np.array_equal(others, whole)


def test_they_are_spread_as_those_that_are_drawn():
    uniform, _ = of_batch_and_slices(lambda x: keras.random.uniform((x.shape[0], 2000), seed=SEED))
    assert np.histogram(uniform, 10, (0, 1))[0] == pytest.approx([1000] * 10, abs=150)
    normal, _ = of_batch_and_slices(lambda x: keras.random.normal((x.shape[0], 2000), seed=SEED))
    assert (normal.mean(), normal.std()) == pytest.approx((0, 1), abs=0.05)
    whole, _ = of_batch_and_slices(lambda x: keras.random.randint((x.shape[0], 2000), 3, 7, seed=SEED))
    assert sorted(np.unique(whole)) == [3, 4, 5, 6]
    counts = (uniform < 0.15).sum(axis=1)  # a mask has other sizes in other slices
    assert len(set(counts.tolist())) > 1


def test_one_number_for_all_where_inputs_say_what_may_be_drawn_or_nobody_knows_how_many():
    whole, parts = of_batch_and_slices(lambda x: tf.random.categorical(x, 4))
    assert [each.tolist() for each in (whole, *parts)] == [[[0] * 4] * n for n in (5, 3, 2)]
    some, _ = of_batch_and_slices(lambda x: tf.random.normal(tf.shape(tf.boolean_mask(x, x[:, 0] > 0))))
    assert len(np.unique(some)) == 1


def test_where_the_examples_are_cannot_always_be_told():
    assert places((-1, 2), (-1, 2), 5, 5, 10) is None
    assert places((10, -1), (5, -1), 5, 5, 10) == (DrawPlace(0, 0, 10), DrawPlace(0, 5, 10))
    assert places((10, 4), (5, 4), 5, 5, 10) == (DrawPlace(0, 0, 10), DrawPlace(0, 5, 10))
    assert places((3, 10), (3, 2), 6, 2, 10) == (DrawPlace(1, 0, 10), DrawPlace(1, 6, 10))
    assert places((20,), (4,), 3, 2, 10) is None
    assert places((4,), (4,), 5, 5, 10) == (DrawPlace(), DrawPlace())
    assert places((10, 10), (5, 5), 5, 5, 10) is None
    assert places((4,), (3,), 5, 5, 10) is None
    assert places(None, (3,), 5, 5, 10) is None


class Masked(keras.Sequential):
    """The error counts where a number was drawn: in few places."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.masked(y, y_pred)

    def masked(self, y, y_pred):
        few = ops.cast(keras.random.uniform(ops.shape(y_pred), seed=SEED) < 0.15, "float32")
        return self.of(few * (y_pred - y) ** 2, few)


class MaskedStep(Masked):
    asks = False  # for compute_loss, which is given the predictions of the whole batch

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x)) if self.asks else self.masked(y, self(x))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


def test_a_sum_over_a_random_mask_is_that_of_the_whole_batch():
    """Other numbers are drawn than by Keras, and a sum is as large: all errors are the same one here."""
    made = dense(Masked, rate=0.0)
    made.of = lambda errors, few: ops.sum(errors)
    y = made(X[:1]).numpy() + 1 + np.zeros_like(X)
    (loss,) = cn.fit(made, np.repeat(X[:1], 16, 0), y, batch_size=16, devices=4, verbose=0).history["loss"]
    assert loss == pytest.approx(0.15 * 96, rel=0.5)  # a quarter of it would be 3.6


def test_a_quotient_over_a_random_mask_is_refused_in_a_step_of_its_own():
    made = dense(MaskedStep)
    made.of = lambda errors, few: ops.sum(errors) / ops.sum(few)
    with pytest.raises(cn.InvalidArgument, match="has a loss that is not the mean"):
        cn.fit(made, X, X, batch_size=8, devices=2, verbose=0)


def test_and_is_that_of_the_whole_batch_where_the_step_asks_compute_loss_for_it(capsys):
    made = dense(MaskedStep)
    made.asks, made.of = True, lambda errors, few: ops.sum(errors) / ops.sum(few)
    cn.fit(made, X, X, batch_size=8, devices=2, verbose=2)
    assert "proved on the first batch, without the random numbers" in capsys.readouterr().out


def test_dropout_is_proved_with_what_it_drops(capsys):
    made = dense(keras.Sequential, keras.layers.Dropout(0.5), loss="mse")
    cn.fit(made, X, X, batch_size=8, devices=2, verbose=2)
    assert "proved on the first batch, without the random numbers" in capsys.readouterr().out
