"""What a first batch cannot show: a loss that is no number, gradients that halves do not hold."""

import keras
import numpy as np
import pytest
from compared_fits import X, Y, assert_that_of_keras, dense
from keras import ops

import colonnade as cn


class Own(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.of(ops.cast(y_pred, "float32"), y)


def own(of, **options):
    made = dense(Own, **options)
    made.of = of
    return made


def test_a_loss_that_is_no_number_proves_nothing_and_the_next_batch_is_looked_at():
    """In it the sum is found."""
    y = np.abs(Y)
    y[:8] *= -1  # of the first batch there is no logarithm
    made = own(lambda given, y: ops.sum(given**2) + 0 * ops.mean(ops.log(y)), rate=0.0)
    expected = float(np.sum(made(X[8:]).numpy() ** 2))
    with pytest.warns(UserWarning, match="not proved on the first batch: its loss is nan, as a whole and in"):
        cn.train_on_batch(made, X[:8], y[:8], devices=2)
    assert cn.train_on_batch(made, X[8:], y[8:], devices=2) == pytest.approx(expected, rel=1e-4)


def test_gradients_that_are_all_0_prove_nothing():
    made = own(lambda given, y: ops.sum(ops.relu(given - 100.0)))
    with pytest.warns(UserWarning, match="all gradients of it are 0, as a whole and in slices"):
        cn.fit(made, X, Y, batch_size=16, devices=2, verbose=0)


def test_a_sum_whose_first_gradients_halves_do_not_hold_is_found():
    keras.config.set_dtype_policy("mixed_float16")
    try:

        def make():
            return own(lambda given, y: ops.sum((given - y) ** 2), rate=1e-6)

        assert_that_of_keras(make, 100 * X, 100 * Y, tolerance=2e-3)
    finally:
        keras.config.set_dtype_policy("float32")
