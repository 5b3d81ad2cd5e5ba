"""TensorFlow's words for an assertion that failed, out of which the guard against NaN is read: canaries.

Seen with TensorFlow 2.21.0. If one of these fails with another version, its message reads otherwise, and the
regular expression of `explained` in the engine room has to follow.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

HERE = f"seen with TensorFlow 2.21.0; this is {tf.__version__}"


def test_an_assertion_tells_its_text_and_all_its_numbers():
    @tf.function
    def failing(table):
        said = ["spoken", tf.constant(7, tf.int64), tf.shape(table), table]
        tf.debugging.Assert(tf.reduce_all(tf.math.is_finite(table)), said, summarize=-1)

    table = np.ones((2, 5), "float32")
    table[1, 2:] = np.nan, np.inf, -np.inf
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        failing(table)
    said = "assertion failed: [spoken] [7] [2 5] [[1 1 1 1 1][1 1 nan inf -inf]]\n"
    assert said in caught.value.message, f"{HERE}:\n{caught.value.message}"


def test_the_guard_names_device_step_and_variable():
    """Of many numbers none is left out: the one that is not finite is the last but one of twelve."""
    weights = [tf.Variable(1.0, name=f"w{i}") for i in range(5)]

    def loss(x, bad):
        # The gradient of w4 alone is infinite, and on the second device only.
        root = tf.sqrt(tf.abs(weights[4] - 1.0) + tf.where(bad, 0.0, 1.0))
        return x * tf.add_n([tf.convert_to_tensor(w) for w in weights[:4]]) + root

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2)
    fine = np.ones(4, "float32"), np.zeros(4, bool)
    trainer.train_on_batch(*fine)
    weights[4].assign(1.0)
    with pytest.raises(cn.NotFinite) as caught:
        trainer.train_on_batch(np.ones(4, "float32"), np.array([False, False, False, True]))
    named = caught.value.device, caught.value.step, caught.value.variable
    assert named == ("/device:CPU:1", 2, "w4:0"), HERE


@pytest.mark.parametrize(("home", "on_nan"), [("shared", "stop"), ("mirrored", "skip")])
def test_half_floats_that_overflow_where_slices_are_added_up(home, on_nan):
    """Of each slice the gradient is 36 000, and the largest half float is 65 504."""
    w = tf.Variable(tf.zeros([1, 1], "float16"), name="half")
    trainer = cn.Trainer(
        lambda x: 1.2 * tf.squeeze(x @ w, 1),
        keras.optimizers.SGD(0.1),
        devices=2,
        variables=home,
        on_nan=on_nan,
    )
    batch = np.full((2, 1), 60_000, "float16")
    if on_nan == "skip":
        assert trainer.train_on_batch(batch).skipped == 1
    else:
        with pytest.raises(cn.NotFinite) as caught:
            trainer.train_on_batch(batch)
        assert caught.value.variable == "half:0"
    assert w.numpy() == 0.0
