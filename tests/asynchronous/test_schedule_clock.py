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
