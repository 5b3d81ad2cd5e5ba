"""Evaluation: every example counts once, and nothing changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.step.evaluation import Evaluation, averaged

DEVICES = ["/device:CPU:0", "/device:CPU:1", "/device:CPU:2"]
X = np.arange(11.0) ** 2


def evaluated(loss, batch, devices=3):
    data = tf.data.Dataset.from_tensor_slices((X,)).batch(batch)
    return Evaluation(loss, DEVICES[:devices]).run(data, ["x"], {})


@pytest.mark.parametrize(("batch", "devices"), [(11, 1), (4, 3), (2, 3), (10, 2)])
def test_the_mean_is_that_over_all_examples(batch, devices):
    loss, metrics, examples = evaluated(lambda x: (2 * x, {"odd": x % 2}), batch, devices)
    assert (loss, metrics["odd"]) == pytest.approx((2 * X.mean(), 5 / 11), rel=1e-6)
    assert examples == 11


def test_weights_count_over_all_batches():
    loss, _, _ = evaluated(lambda x: cn.Weighted(x, tf.cast(x > 20, tf.float64)), 4)
    assert loss == pytest.approx(X[X > 20].mean(), rel=1e-6)
    nothing, _, _ = evaluated(lambda x: cn.Weighted(x, 0 * x), 4)
    assert nothing == 0.0


def test_what_the_function_changes_is_as_it_was():
    count = tf.Variable(7.0, trainable=False)

    def loss(x):
        count.assign_add(1.0)
        return x + 0.0 * tf.cast(count, x.dtype)

    evaluated(loss, 4)
    assert float(count) == 7.0


def test_no_data():
    data = tf.data.Dataset.from_tensor_slices((X,)).batch(4).take(0)
    with pytest.raises(cn.InvalidArgument, match="gave no batch"):
        Evaluation(lambda x: x, DEVICES).run(data, ["x"], {})


@pytest.mark.parametrize("built_before", [False, True])
def test_averaged_weights_are_there_for_a_while(built_before):
    v, w = tf.Variable(1.0, name="v"), tf.Variable(10.0, name="w")
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    order = [w, v] if built_before else [v, w]  # one that is built may have another order
    optimizer.build(order)
    for _ in range(2):
        optimizer.apply([tf.constant(2.0 if p is v else 20.0) for p in order], order)
    after = float(v), float(w)
    with averaged(optimizer, [v, w], built_before=built_before):
        inside = float(v), float(w)
    assert inside == pytest.approx((inside[0], 10 * inside[0]))
    assert inside[0] != after[0]
    assert (float(v), float(w)) == after


def test_without_averages_nothing_is_put_in_place():
    w = tf.Variable(1.0)
    with averaged(keras.optimizers.SGD(1.0), [w], built_before=False):
        assert float(w) == 1.0


@pytest.mark.parametrize("home", ["shared", *long("mirrored", "partitioned")])
def test_a_loss_that_calls_what_xla_compiles(home):
    """XLA reads variables of one device only, so each device is given the values for a moment."""
    w = tf.Variable([[1.0], [2.0]])

    @tf.function(jit_compile=True)
    def compiled(x):
        return tf.tanh(x @ w)

    def run(devices):
        w.assign([[1.0], [2.0]])
        trainer = cn.Trainer(
            lambda x: tf.squeeze(compiled(x) ** 2, 1),
            keras.optimizers.SGD(0.1),
            devices=devices,
            variables=home,
        )
        x = np.linspace(-1, 1, 12, dtype="float32").reshape(6, 2)
        losses = [trainer.evaluate((x,), batch_size=5).loss]
        trainer.fit((x,), batch_size=6, steps=3, progress=False)
        losses.append(trainer.evaluate((x,), batch_size=6).loss)
        return [*losses, *w.numpy().ravel()]

    assert run(3) == pytest.approx(run(1), rel=1e-5)
