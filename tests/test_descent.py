"""What every mode has in common: the guard against what is not finite, and batches without any weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept

import colonnade as cn

MODES = {
    "synchronous": cn.Synchronous(),
    "local": cn.LocalSGD(2),
    "DiLoCo": cn.DiLoCo(1),
    "elastic": cn.Elastic(1, 0.2),
    "asynchronous": cn.Asynchronous(),
}
ONES = np.ones((4, 2), "float32")


@pytest.fixture(params=kept(MODES, "synchronous", "elastic", "asynchronous"))
def sync(request):
    return MODES[request.param]


def penalised(sync, on_nan, optimizer=None):
    """The gradient of a norm at zero is not finite, though the norm itself is."""
    bias, w = tf.Variable(0.0, name="bias"), tf.Variable([0.0, 0.0], name="weights")
    trainer = cn.Trainer(
        lambda x: tf.reduce_sum(x * w, axis=1) + bias,
        optimizer or keras.optimizers.SGD(0.5, momentum=0.5),
        devices=2,
        sync=sync,
        penalty=lambda: tf.norm(w),
        on_nan=on_nan,
    )
    return bias, w, trainer


def test_a_penalty_that_is_not_finite_stops_and_is_named(sync):
    bias, w, trainer = penalised(sync, "stop")
    with pytest.raises(
        cn.NotFinite, match=r"the penalty, or its gradient, is not finite on .* at step 1"
    ) as e:
        trainer.train_on_batch(ONES)
    assert e.value.variable == "weights:0"
    assert w.numpy().tolist() == [0.0, 0.0]
    assert bias.numpy() == 0.0
    whole = "No update was applied." in str(e.value)
    assert whole != isinstance(sync, cn.Asynchronous)
    w.assign([3.0, 4.0])
    assert np.isfinite(trainer.train_on_batch(ONES).loss)  # and it can go on


def test_a_penalty_that_is_not_finite_is_skipped(sync):
    bias, w, trainer = penalised(sync, "skip")
    record = trainer.train_on_batch(ONES)
    assert record.skipped == (2 if isinstance(sync, cn.Asynchronous) else 1)
    assert w.numpy().tolist() == [0.0, 0.0]
    assert bias.numpy() == 0.0


def test_loss_scaling_does_not_hide_the_penalty():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    _, w, trainer = penalised(None, "stop", optimizer)
    with pytest.raises(cn.NotFinite, match="the penalty"):
        trainer.train_on_batch(ONES)
    assert w.numpy().tolist() == [0.0, 0.0]


def weighted(sync, **options):
    w = tf.Variable([1.0, 2.0])
    trainer = cn.Trainer(
        lambda x, m: (cn.Weighted(tf.reduce_sum(x * w, axis=1), m), {"one": tf.ones_like(m)}),
        keras.optimizers.SGD(0.25),
        devices=2,
        sync=sync,
        **options,
    )
    return w, trainer


def test_a_batch_without_any_weight_has_a_loss_and_a_gradient_of_zero(sync):
    w, trainer = weighted(sync)
    for _ in range(2):  # up to a join
        record = trainer.train_on_batch(ONES, np.zeros(4, "float32"))
    assert (record.loss, record.metrics, record.skipped) == (0.0, {"one": 0.0}, 0)
    assert w.numpy().tolist() == [1.0, 2.0]
    trainer.train_on_batch(ONES, np.ones(4, "float32"))
    assert (w.numpy() < [1.0, 2.0]).all()


def test_without_any_weight_the_penalty_still_counts(sync):
    _, trainer = weighted(sync, penalty=lambda: tf.constant(7.0))
    assert trainer.train_on_batch(ONES, np.zeros(4, "float32")).loss == 7.0


def test_momentum_without_any_weight_is_shown_before_a_join():
    w = tf.Variable([1.0, 2.0])
    trainer = cn.Trainer(
        lambda x, m: cn.Weighted(tf.reduce_sum(x * w, axis=1), m),
        keras.optimizers.SGD(0.25, momentum=0.5),
        devices=2,
        sync=cn.LocalSGD(2),
    )
    for weight in (1.0, 1.0, 0.0):  # the join is after the second; then replicas go on by momentum alone
        trainer.train_on_batch(ONES, np.full(4, weight, "float32"))
    assert w.numpy().tolist() == trainer.replicas()[0][0].tolist() == [1 - 0.8125, 2 - 0.8125]
