"""The state of a dataset's iterator, and where TensorFlow does not tell all of it."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.data.iterator_state import (
    comes_again,
    num_shuffles_at_work,
    restore_iterator,
    save_iterator,
)
from colonnade.run.data.shuffles import Shuffles

IDS = np.arange(103)


def shuffled(**options):
    return tf.data.Dataset.from_tensor_slices(IDS).shuffle(50, **options).batch(10)


def rest(iterator):
    return [batch.numpy().tolist() for batch in iterator]


RANGE = tf.data.Dataset.range


@pytest.mark.parametrize(
    ("make", "again"),
    [
        (lambda: shuffled().prefetch(2), True),
        (lambda: shuffled(reshuffle_each_iteration=False), True),
        (lambda: shuffled().map(lambda x: x + 1, num_parallel_calls=4).prefetch(tf.data.AUTOTUNE), True),
        (lambda: RANGE(30).shuffle(9).interleave(RANGE, num_parallel_calls=2).batch(9), True),
        (lambda: RANGE(30).repeat().shuffle(9).batch(10), True),
        (lambda: two(lambda a, b: tf.data.Dataset.sample_from_datasets([a, b]), 60)(), True),
        (lambda: two(lambda a, b: tf.data.Dataset.zip((a, b)), 120)().map(lambda a, b: a), True),
        (lambda: RANGE(4).shuffle(9).batch(5).repeat(), False),
        (lambda: shuffled().repeat(), False),
        (lambda: RANGE(103).shuffle(9).repeat(3).shuffle(5).batch(10), False),
        (lambda: RANGE(30).shuffle(9).flat_map(RANGE).shuffle(4).batch(9), False),
        (lambda: RANGE(120).shuffle(200).shuffle(200).batch(9), False),  # the lower one is soon at its end
        (lambda: RANGE(100).shuffle(9).concatenate(RANGE(100).shuffle(9)).batch(9), False),
    ],
)
def test_what_comes_again_from_the_start_of_a_pass(make, again):
    """Without any seed, and with another dataset object, as a program that is run again has one."""
    dataset = make()
    first = iter(dataset)
    start = save_iterator(first, "fit()")
    wanted = [next(first).numpy().tolist()]
    assert comes_again(start, save_iterator(first, "fit()"), Shuffles.of(dataset)) == again
    wanted += [batch.numpy().tolist() for batch in first_of(first, 24)]
    second = iter(make())
    restore_iterator(second, start, "fit()")
    assert ([batch.numpy().tolist() for batch in first_of(second, 25)] == wanted) == again
    assert len(wanted) > 10


def test_between_two_rounds_a_shuffle_leaves_no_trace():
    """The trap behind `num_shuffles_at_work`; if this fails, TensorFlow tells more than it did.

    On a busy machine its threads may have begun the next round before they are asked, so it is tried again.
    """
    for _ in range(20):
        iterator = iter(shuffled(seed=3).repeat(3))
        told = [num_shuffles_at_work(save_iterator(iterator, "fit()"))]
        for _ in range(23):
            next(iterator)
            told.append(num_shuffles_at_work(save_iterator(iterator, "fit()")))
        assert told[0] == 1
        if 0 in told:
            break
    assert 1 <= told.count(0) < told.count(1)


def first_of(iterator, count):
    return itertools.islice(iterator, count)


@pytest.mark.parametrize("taken", [0, 1, 5, 10, 11])
def test_a_place_with_its_buffers_goes_on_with_the_same_batches(taken):
    first = iter(shuffled().prefetch(2))
    for _ in range(taken):
        next(first)
    state = save_iterator(first, "fit()")
    wanted = rest(first)
    second = iter(shuffled().prefetch(2))
    restore_iterator(second, state, "fit()")
    assert rest(second) == wanted
    assert len(wanted) == 11 - taken


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(4).map(lambda x: tf.random.uniform([])),
        tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)),
    ],
)
def test_what_cannot_be_saved_is_an_error_with_the_choices(dataset):
    with pytest.raises(cn.InvalidArgument, match=r'is stateful.*"skip" goes through.*"restart" begins'):
        save_iterator(iter(dataset), "fit()")


def test_another_pipeline_is_an_error():
    first = iter(shuffled(seed=3))
    next(first)
    other = iter(tf.data.Dataset.range(10).filter(lambda x: x > 2).batch(3))
    with pytest.raises(cn.InvalidArgument, match="is not built like the one of the saved step"):
        restore_iterator(other, save_iterator(first, "fit()"), "fit()")


def two(join, size=13, **seeds):
    return lambda: join(*(RANGE(size).shuffle(9, seed=seeds.get(name)) for name in "ab")).batch(5)
