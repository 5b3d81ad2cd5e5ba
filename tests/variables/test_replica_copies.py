"""What becomes of variables that are of a slice after a step."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.trace.traced import trace
from colonnade.run.variables.replica_copies import ReplicaCopies

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


def variable(name, **options):
    return tf.Variable(1.0, trainable=False, name=name, **options)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        (tf.VariableAggregation.NONE, 1 + 0.75 * 4 + 0.25 * 8),
        (tf.VariableAggregation.SUM, 1 + 4 + 8),
        (tf.VariableAggregation.ONLY_FIRST_REPLICA, 1 + 4),
    ],
)
def test_values_of_slices_become_one_by_their_sizes_or_as_it_is_said(aggregation, expected):
    state, read = variable("state", aggregation=aggregation), tf.Variable(2.0)

    def step(x):
        state.assign_add(read * tf.reduce_sum(x))
        return tf.constant(0)

    traced, copies = trace(step, tf.TensorSpec([1])), ReplicaCopies(DEVICES)
    bound = [copies.bindings(i, traced) for i in range(2)]
    copies.note(traced)

    @tf.function(autograph=False)
    def both(one, other):
        copies.begin()
        before = copies.before()
        for device, each, handles in zip(DEVICES, ([one], [other]), bound, strict=True):
            traced.on(device, each, handles)
        return copies.settle([0.75, 0.25], before)

    both(tf.constant([2.0]), tf.constant([4.0]))
    assert float(state) == pytest.approx(expected)
    state.assign(1.0)  # by the user: replicas set out from it
    both(tf.constant([2.0]), tf.constant([4.0]))
    assert float(state) == pytest.approx(expected)


def test_streams_of_random_numbers_are_the_replicas_own():
    generator = tf.random.Generator.from_seed(1)
    traced, copies = trace(lambda x: x + generator.normal([1]), tf.TensorSpec([1])), ReplicaCopies(DEVICES)
    drawn = [traced.on(d, [tf.zeros([1])], copies.bindings(i, traced)) for i, d in enumerate(DEVICES)]
    assert not np.allclose(drawn[0], drawn[1])
    again = [traced.on(d, [tf.zeros([1])], copies.bindings(i, traced)) for i, d in enumerate(DEVICES)]
    assert not np.allclose(again[1], drawn[1])
