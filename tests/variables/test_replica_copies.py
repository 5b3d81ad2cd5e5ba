"""Which variables are of a slice after a step, and what becomes of them."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.trace.traced import trace
from colonnade.run.variables.replica_copies import ReplicaCopies, local_outputs, local_variables

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


def variable(name, **options):
    return tf.Variable(1.0, trainable=False, name=name, **options)


def summed(x):
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(x))


def test_what_depends_on_the_batch_through_sums_alone_is_the_same_everywhere():
    shared, moving, from_moving, counter = (variable(n) for n in ("shared", "moving", "after", "counter"))

    def step(x):
        shared.assign_sub(summed(x))
        moving.assign(0.9 * moving + 0.1 * tf.reduce_mean(x))
        from_moving.assign(moving * 2.0)  # through a variable
        counter.assign_add(1.0)
        return shared.read_value(), moving.read_value(), counter.read_value()

    traced = trace(step, tf.TensorSpec([3]))
    assert {v.name for v in local_variables(traced)} == {"moving:0", "after:0"}
    assert local_outputs(traced) == [False, True, False]


def test_random_numbers_are_of_a_slice():
    noise, generator = variable("noise"), tf.random.Generator.from_seed(1)

    def step(x):
        noise.assign(generator.normal([]))
        return x

    assert noise.name in {v.name for v in local_variables(trace(step, tf.TensorSpec([3])))}


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
