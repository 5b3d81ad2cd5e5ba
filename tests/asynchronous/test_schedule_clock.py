import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.asynchronous.schedule_clock import by_global_step


def test_schedules_follow_global_steps_and_moments_count_updates():
    w = tf.Variable(0.0)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.0])
    # Adam moves by the rate if the gradient is always the same, and if it counts its moments rightly.
    trainer = cn.Trainer(lambda x: -w * x, keras.optimizers.Adam(schedule), devices=3, sync=cn.Asynchronous())
    rates = []
    for _ in range(6):
        trainer.train_on_batch(np.ones(3, "float32"))
        rates.append(float(trainer.optimizer.learning_rate))
    assert rates == [0.5, 0.5, 0.5, 0.0, 0.0, 0.0]
    assert int(trainer.optimizer.iterations) == 6
    assert w.numpy() == pytest.approx(4 * 3 * 0.5, rel=1e-4)  # steps 0 to 3, three updates each
    assert isinstance(trainer.optimizer.get_config()["learning_rate"], dict)  # the user's schedule is back


@pytest.mark.parametrize("wrapped", [False, True])
def test_while_it_is_paced_an_optimizer_asks_its_schedule_about_the_step_it_is_given(wrapped):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    inner = keras.optimizers.SGD(schedule)
    optimizer = keras.optimizers.LossScaleOptimizer(inner) if wrapped else inner
    step = tf.Variable(3, dtype="int64")
    with by_global_step(optimizer, step):
        assert float(inner.learning_rate) == 0.0625
        step.assign(1)
        assert float(inner.learning_rate) == 0.25
    assert float(inner.learning_rate) == 0.5  # its own count, which is 0


def test_the_schedule_is_back_after_an_error_too():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)
    optimizer = keras.optimizers.SGD(schedule)
    with pytest.raises(ZeroDivisionError), by_global_step(optimizer, tf.constant(3)):
        raise ZeroDivisionError
    assert float(optimizer.learning_rate) == 0.5


def test_a_rate_without_a_schedule_stays_as_it_is():
    optimizer = keras.optimizers.SGD(0.25)
    with by_global_step(optimizer, tf.constant(3)):
        assert float(optimizer.learning_rate) == 0.25


@pytest.mark.parametrize("devices", [1, 3])
def test_a_loss_that_reads_the_count_of_updates_is_told_the_global_step(devices):
    w = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(1.0, 8, 0.0))

    def loss(x):
        return w * x, {"count": optimizer.iterations.value, "rate": optimizer.learning_rate}

    trainer = cn.Trainer(loss, optimizer, devices=devices, sync=cn.Asynchronous())
    data = [np.ones(6, "float32")] * 3
    told = [trainer.train_on_batch(batch) for batch in data]
    told += trainer.fit(iter(data), log_every=1, progress=False).records
    assert [record.metrics["count"] for record in told] == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose([record.metrics["rate"] for record in told], 1 - np.arange(6) / 8, rtol=1e-6)


def test_each_of_several_optimizers_has_its_schedule_by_global_steps():
    a, b = keras.Variable([0.0], name="a"), keras.Variable([0.0], name="b")
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.5, 0.0])
    both = [keras.optimizers.SGD(schedule), keras.optimizers.SGD(0.25)]
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: both["b" in variable.path])
    trainer = cn.Trainer(lambda x: -(a.value + b.value) * x, optimizer, devices=2, sync=cn.Asynchronous())
    seen = []
    for _ in range(5):
        trainer.train_on_batch(np.ones(2, "float32"))
        seen.append((float(a.value[0]), float(b.value[0])))
    assert seen == [(1.0, 0.5), (2.0, 1.0), (3.0, 1.5), (3.0, 2.0), (3.0, 2.5)]
