import keras
import numpy as np
import tensorflow as tf

import colonnade as cn
from colonnade.run.train.profiled import WARM_UP

# Wide enough: of ops that take less than some microseconds TensorFlow tells nothing.
X = np.ones([40, 1024], "float32")


def trainer(**options):
    w = tf.Variable(tf.ones([1024, 64]))
    return cn.Trainer(
        lambda x: tf.reduce_sum((x @ w) ** 2, 1), keras.optimizers.SGD(0.0), devices=2, **options
    )


def test_steps_before_those_that_are_recorded_are_made_and_not_in_it():
    profiled = trainer()
    timeline = profiled.profile((X,), steps=2, batch_size=4)
    assert profiled.step == WARM_UP + 2
    assert {event.step for event in timeline.events} == {WARM_UP + 1, WARM_UP + 2}
    assert {event.device for event in timeline.events} >= {"CPU:0", "CPU:1"}
