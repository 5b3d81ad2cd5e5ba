"""Which variables and outputs are of a slice after a step."""

import tensorflow as tf

from colonnade.run.trace.traced import trace
from colonnade.run.variables import slice_values
from colonnade.run.variables.slice_values import local_outputs, local_variables


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


def test_random_numbers_of_loops_are_of_a_slice_and_those_of_a_constant_seed_are_not():
    in_loop, seeded = variable("in_loop"), variable("seeded")

    def step(x):
        in_loop.assign(tf.reduce_sum(tf.map_fn(lambda _: tf.random.uniform([]), tf.zeros([2]))))
        seeded.assign(tf.random.stateless_uniform([], [1, 2]))
        return x

    assert {v.name for v in local_variables(trace(step, tf.TensorSpec([3])))} == {"in_loop:0"}


def test_a_trace_is_looked_through_once_however_many_variables_it_writes(monkeypatch):
    """Once for each variable, a step of four networks was looked through for most of its first step."""
    moving, searched, reached = [variable(f"moving{i}") for i in range(9)], [], slice_values.reached

    def counted(sources, traced):
        searched.append(traced)
        return reached(sources, traced)

    def step(x):
        for one in moving:
            one.assign(tf.reduce_mean(x))
        return x

    monkeypatch.setattr(slice_values, "reached", counted)
    traced = trace(step, tf.TensorSpec([3]))
    assert len(local_variables(traced)) == 9
    once = len(searched)
    assert once <= 2  # and once more, with what such variables give
    assert len(local_variables(traced)) == 9
    assert local_outputs(traced) == [True]
    assert len(searched) == once


def test_what_a_loop_reads_is_not_written_by_it():
    read, written = variable("read"), variable("written")

    def step(x):
        total = tf.constant(0.0)
        for number in x:
            total += number * read
            written.assign(total)
        read.assign(summed(x))
        return total

    assert [v.name for v in local_variables(trace(step, tf.TensorSpec([3])))] == ["written:0"]
