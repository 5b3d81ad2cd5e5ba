"""The state of a dataset's iterator, and where TensorFlow does not tell all of it."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.data.batches import Batches
from colonnade.run.data.iterator_state import at_work, comes_again, frozen, thaw
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
    start = frozen(first, "fit()")
    wanted = [next(first).numpy().tolist()]
    assert comes_again(start, frozen(first, "fit()"), Shuffles.of(dataset)) == again
    wanted += [batch.numpy().tolist() for batch in first_of(first, 24)]
    second = iter(make())
    thaw(second, start, "fit()")
    assert ([batch.numpy().tolist() for batch in first_of(second, 25)] == wanted) == again
    assert len(wanted) > 10


def test_between_two_rounds_a_shuffle_leaves_no_trace():
    """The trap behind `at_work`; if this fails, TensorFlow tells more than it did."""
    iterator = iter(shuffled(seed=3).repeat(3))
    told = [at_work(frozen(iterator, "fit()"))]
    for _ in range(23):
        next(iterator)
        told.append(at_work(frozen(iterator, "fit()")))
    assert told[0] == 1
    assert 1 <= told.count(0) < told.count(1)


def first_of(iterator, count):
    return itertools.islice(iterator, count)


@pytest.mark.parametrize("taken", [0, 1, 5, 10, 11])
def test_a_place_with_its_buffers_goes_on_with_the_same_batches(taken):
    first = iter(shuffled().prefetch(2))
    for _ in range(taken):
        next(first)
    state = frozen(first, "fit()")
    wanted = rest(first)
    second = iter(shuffled().prefetch(2))
    thaw(second, state, "fit()")
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
        frozen(iter(dataset), "fit()")


def test_another_pipeline_is_an_error():
    first = iter(shuffled(seed=3))
    next(first)
    other = iter(tf.data.Dataset.range(10).filter(lambda x: x > 2).batch(3))
    with pytest.raises(cn.InvalidArgument, match="is not built like the one of the saved step"):
        thaw(other, frozen(first, "fit()"), "fit()")


def below_a_shuffle(*buffers):
    return RANGE(23).shuffle(buffers[0], seed=1).shuffle(buffers[1], seed=2)


def two(join, size=13, **seeds):
    return lambda: join(*(RANGE(size).shuffle(9, seed=seeds.get(name)) for name in "ab")).batch(5)


def sampled(*datasets):
    return tf.data.Dataset.sample_from_datasets(datasets, seed=4)


def files():
    """As they are read: shuffled themselves, some at a time, and then their examples."""
    return RANGE(6).shuffle(6, seed=1).interleave(lambda i: RANGE(10 * i, 10 * i + 7), cycle_length=3)


ARRANGEMENTS = {  # each with the passes to make
    "rounds": (lambda: RANGE(23).shuffle(10, seed=1).batch(5).repeat(), 1),
    "rounds without a rest": (lambda: RANGE(20).shuffle(10, seed=1).batch(5).repeat(), 1),
    "rounds of one batch": (lambda: RANGE(4).shuffle(10, seed=1).batch(5).repeat(), 1),
    "batches across rounds": (lambda: RANGE(23).shuffle(10, seed=1).repeat().batch(5), 1),
    "rounds in passes": (lambda: RANGE(23).shuffle(10, seed=1).batch(5).repeat(2), 3),
    "two that are long": (lambda: below_a_shuffle(30, 30).batch(5), 3),
    "two that are short": (lambda: below_a_shuffle(4, 3).batch(5), 3),
    "rounds of two": (lambda: below_a_shuffle(30, 30).batch(5).repeat(), 1),
    "rounds of two that are short": (lambda: below_a_shuffle(4, 3).batch(5).repeat(), 1),
    "a shuffle of rounds": (lambda: RANGE(23).shuffle(9, seed=1).repeat(3).shuffle(5, seed=2).batch(5), 2),
    "one behind the other": (two(lambda a, b: a.concatenate(b), a=1, b=2), 3),
    "rounds of one behind the other": (lambda: two(lambda a, b: a.concatenate(b), a=1, b=2)().repeat(), 1),
    "side by side": (
        lambda: two(lambda a, b: tf.data.Dataset.zip((a, b)), a=1, b=2)().map(lambda a, b: a).repeat(),
        1,
    ),
    # TensorFlow never ends one of which a part is at its end when its state is brought back.
    "now one, now the other": (two(sampled, a=1, b=2), 3),
    "files": (lambda: files().shuffle(8, seed=2).batch(5), 3),
    "a cache below": (lambda: RANGE(23).cache().shuffle(10, seed=1).shuffle(30, seed=2).batch(5), 3),
}
QUICK = (
    "rounds",
    "now one, now the other",
    "rounds in passes",
    "two that are long",
    "one behind the other",
    "files",
)


def in_batches(make, passes, **options):
    return Batches(make().map(lambda x: (x,)), ["x"], {}, passes, exact=True, **options)


def seen(batches, count):
    return [one.components()[0].numpy().tolist() for one in first_of(iter(batches.next, None), count)]


@pytest.mark.parametrize("name", [*QUICK, *long(*(name for name in ARRANGEMENTS if name not in QUICK))])
def test_with_seeds_the_order_is_that_of_a_run_that_was_never_cut(name):
    """Cut here and there; with another dataset object each time, as a program that is run again has one."""
    make, passes = ARRANGEMENTS[name]
    unbroken, wanted, places = in_batches(make, passes), [], []
    for taken in range(1, 20):
        wanted += seen(unbroken, 1)
        places.append((unbroken.position(taken), unbroken.begun, taken))
    assert len(wanted) > 14
    for place, begun, taken in places[1 : len(wanted) - 1 : 2]:
        again = in_batches(make, passes, ahead=False)
        again.seek(place, begun, taken)
        assert seen(again, len(wanted) - taken) == wanted[taken:], taken


@pytest.mark.parametrize(
    ("make", "passes"),
    [
        (lambda: below_a_shuffle(30, 30).batch(5).repeat(2), 2),
        *long((lambda: RANGE(23).shuffle(30, seed=1).cache().shuffle(30, seed=2).batch(5), 3)),
    ],
)
def test_where_seeds_are_not_found_again_that_is_said_and_every_example_counts_once(make, passes):
    unbroken = in_batches(make, passes)
    wanted = seen(unbroken, 12)
    place = unbroken.position(12), unbroken.begun, 12
    again = in_batches(make, passes, ahead=False)
    with pytest.warns(UserWarning, match="every example counts once; but .* in another order"):
        again.seek(*place)
    wanted += seen(again, 100)
    whole = np.concatenate([batch.numpy() for _ in range(passes) for batch in make()])
    assert sorted(np.concatenate(wanted)) == sorted(whole)
