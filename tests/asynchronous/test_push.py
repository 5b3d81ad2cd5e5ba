"""A push is the optimizer's update, held against the formula of plain gradient descent."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.asynchronous.push import Pushes


class Slowing(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 1.0 / (1.0 + tf.cast(step, tf.float32))


@pytest.mark.parametrize("damping", [False, True])
def test_a_push_follows_the_global_step_counts_for_itself_and_reads_what_it_wrote(damping):
    first, second = tf.Variable([1.0, 2.0]), tf.Variable([5.0])
    optimizer = keras.optimizers.SGD(Slowing())
    optimizer.build([first, second])
    slots = [variable.value for variable in optimizer.variables]
    device = "/device:CPU:0"
    pushes = Pushes(optimizer, slots, [first, second], [first, second], device, damping=damping, scaled=False)
    push = pushes.of([tf.TensorSpec([2], tf.float32), None])  # the second has no gradient
    assert pushes.of([tf.TensorSpec([2], tf.float32), None]) is push
    expected = np.array([1.0, 2.0])
    for step, age in ((3, 0), (3, 1), (7, 4)):
        begun = time.time()
        arrived, *read = push(
            tf.constant(step, tf.int64), tf.constant(age, tf.int64), tf.constant([2.0, -4.0])
        )
        assert begun <= float(arrived) + 1e-5 <= time.time() + 2e-5  # a graph rounds to microseconds
        expected -= np.array([2.0, -4.0]) / (1 + step) / (1 + age if damping else 1)
        np.testing.assert_allclose(read[0], expected, rtol=1e-6)  # a float32 rounds by 6e-8, three times
        np.testing.assert_array_equal(read[1], [5.0])
        np.testing.assert_array_equal(read[0], first)
    (counter,) = pushes.counters.values()
    assert (int(counter), int(optimizer.iterations), pushes.steps()) == (3, 0, 0)
