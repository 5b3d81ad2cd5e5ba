"""What a look at one batch compares, and what it leaves as it was."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.prove.look import Look
from colonnade.run.trace.traced import trace

X = tf.constant(np.linspace(0.5, 1.5, 12).reshape(6, 2).astype("float32"))


def look(fn, together, writes=()):
    batch = Arguments((X,), {})
    traced = trace(fn, X)

    def alone(given):
        return {"loss": traced.concrete(*given.components())[0].numpy()}

    return Look(batch, traced, tuple(traced.outputs), alone, lambda _: {"loss": together}, tuple(writes))


def total(x):
    return tf.reduce_sum(x * x)


def test_rounding_is_equal_and_more_is_not():
    exact = float(total(X))
    assert look(total, np.float32(exact * (1 + 1e-7))).unequal == []
    (row,) = look(total, np.float32(exact * (1 + 1e-4))).unequal
    assert (row.leaf, row.batch, row.cause) == ("loss", 6, "slices")
    assert row.difference == pytest.approx(exact * 1e-4, rel=0.01)
    assert look(total, None).unequal[0].difference == float("inf")


def test_values_that_nobody_has_given_tell_nothing_where_only_slices_raise():
    assert look(total, np.float32(0)).tells
    failing = look(total, None)
    object.__setattr__(failing, "together", lambda _: {"loss": tf.gather(X, 9)})
    assert not failing.tells


def test_variables_are_put_back_and_random_numbers_are_known():
    count, generator = tf.Variable(0.0), tf.random.Generator.from_seed(1)

    def noisy(x):
        count.assign_add(1.0)
        return total(x) * generator.normal([])

    before = generator.state.numpy()
    found = look(noisy, np.float32(0.0), [count, generator.state])
    assert found.unequal
    assert found.random
    assert not look(total, np.float32(0.0)).random
    assert float(count) == 0.0
    np.testing.assert_array_equal(generator.state.numpy(), before)


def test_no_more_is_run_than_explains_the_differences():
    """A difference beyond all rounding needs none; a small one the first runs; one in between all of them."""
    rest = float(total(X)) - 0.125

    def cancelled(x):
        return total(x) - rest

    def counted(difference):
        runs = []
        found = look(cancelled, np.float32(float(cancelled(X)) + difference))
        alone = found.alone

        def counting(given):
            runs.append(given)
            return alone(given)

        object.__setattr__(found, "alone", counting)
        return [row.equal for row in found.rows], len(runs)

    assert counted(0.0) == ([True], 1)
    assert counted(1e-6) == ([True], 4)  # another order, and digits moved twice: the first time to no effect
    assert counted(1e-4) == ([False], 5)  # digits moved three times
    assert counted(0.1) == ([False], 1)


def test_floats_in_halves_are_allowed_what_halves_lose():
    def halves(x):
        return tf.cast(total(tf.cast(x, tf.bfloat16)), tf.float32)

    found = look(halves, np.float32(float(halves(X)) * 1.01))
    assert found.step == 2.0**-7
    assert found.unequal == []
