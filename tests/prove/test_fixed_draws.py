"""Fixed numbers in the place of those that a trace draws."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.move.reduce import star
from colonnade.run.prove.fixed_draws import NORMAL, UNIFORM, muted, with_fixed_draws
from colonnade.run.trace.traced import trace
from colonnade.run.trace_cut.sync_cut import call_with_sums

X = tf.ones([3, 2])
SEED = keras.random.SeedGenerator(1)
GENERATOR = tf.random.Generator.from_seed(1)
DROPOUT = keras.layers.Dropout(0.9, seed=3)


def of(fn):
    traced = with_fixed_draws(trace(fn, tf.TensorSpec([3, 2])))
    (found,) = traced.on("/device:CPU:1", [X], {})
    return found.numpy()


@pytest.mark.parametrize(
    ("draw", "value"),
    [
        (lambda x: keras.random.uniform(x.shape, seed=SEED), UNIFORM),
        (lambda x: keras.random.normal(x.shape, seed=SEED), NORMAL),
        (lambda x: tf.random.normal(tf.shape(x), stddev=2.0), 2 * NORMAL),
        (lambda x: GENERATOR.normal(x.shape), NORMAL),
        (lambda x: tf.cast(keras.random.randint(x.shape, 4, 9, seed=SEED), tf.float32), 4.0),
        (lambda x: tf.random.shuffle(x * [[1.0], [2.0], [3.0]]), [[1.0, 1], [2, 2], [3, 3]]),
        (lambda x: keras.random.gamma(x.shape, 2.0, seed=SEED), NORMAL),
        (lambda x: keras.random.binomial(x.shape, 3, 0.5, seed=SEED), 1.0),
        (lambda x: DROPOUT(x, training=True), 10.0),  # all is kept
        (lambda x: tf.random.gamma([3], tf.ones([2])), NORMAL),
        (
            lambda x: tf.random.experimental.stateless_shuffle(x * [[1.0], [2.0], [3.0]], [1, 2]),
            [[1, 1], [2, 2], [3, 3]],
        ),
        (lambda x: tf.random.stateless_poisson(x.shape, [1, 2], 3.0), 1.0),
        (lambda x: tf.random.stateless_parameterized_truncated_normal(x.shape, [1, 2], 0.0), NORMAL),
        (lambda x: tf.cast(GENERATOR.uniform_full_int(x.shape, "int32"), tf.float32), 1.0),
    ],
)
def test_what_is_drawn_is_a_fixed_number_for_every_example(draw, value):
    np.testing.assert_allclose(of(draw), np.broadcast_to(value, [3, 2]), rtol=1e-6)


def test_functions_and_branches_too_and_the_trace_itself_stays_as_it_is():
    inner = tf.function(lambda x: keras.random.normal(x.shape, seed=SEED))

    def draws(x):
        return tf.cond(x[0, 0] > 0, lambda: inner(x), lambda: tf.zeros_like(x))

    traced = trace(draws, tf.TensorSpec([3, 2]))
    (fixed,) = with_fixed_draws(traced).on("/device:CPU:0", [X], {})
    np.testing.assert_allclose(fixed, NORMAL)
    (drawn,) = traced.on("/device:CPU:0", [X], {})
    assert np.std(drawn) > 0


def test_a_loop_may_wait_for_a_number_that_it_likes():
    def waits(x):
        drawn = tf.while_loop(
            lambda n: n > 0.5, lambda n: [keras.random.uniform([], seed=SEED)], [tf.constant(1.0)]
        )
        return x * drawn[0]

    assert of(waits).max() <= 0.5


def test_sums_over_replicas_gradients_and_variables_are_those_of_the_trace():
    w = tf.Variable([[2.0], [1.0]])

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x + keras.random.normal(x.shape, seed=SEED)) @ w)
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tape.gradient(loss, w))

    traced = trace(tf.autograph.experimental.do_not_convert(step), tf.TensorSpec([3, 2]))
    fixed = with_fixed_draws(traced)
    devices = ["/device:CPU:0", "/device:CPU:1"]
    for (gradient,) in call_with_sums([fixed] * 2, devices, [[X], [2 * X]], [{}, {}], star(2)):
        np.testing.assert_allclose(gradient[:, 0], [1 + 2 + 2 * NORMAL] * 2, rtol=1e-6)


def test_what_is_printed_anywhere_is_not_heard(capfd):
    def prints(x):
        tf.print("one")

        def body(i, x):
            tf.print("two")
            return i + 1, x + 1

        return tf.while_loop(lambda i, x: i < 2, body, (0, x))[1]

    traced = trace(prints, tf.TensorSpec([3, 2]))
    (found,) = muted(traced).on("/device:CPU:0", [X], {})
    np.testing.assert_allclose(found, 3.0)
    assert not capfd.readouterr().err
