"""The batches of a fit: one at hand, and a place in the data from which to go on."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.data.batches import END, Batches, dims, rows, without_tuning

RANGE = tf.data.Dataset.range


def below_a_shuffle(*buffers):
    return RANGE(23).shuffle(buffers[0], seed=1).shuffle(buffers[1], seed=2)


def sampled(*datasets):
    return tf.data.Dataset.sample_from_datasets(datasets, seed=4)


def files():
    """As they are read: shuffled themselves, some at a time, and then their examples."""
    return RANGE(6).shuffle(6, seed=1).interleave(lambda i: RANGE(10 * i, 10 * i + 7), cycle_length=3)


def two(join, size=13, **seeds):
    return lambda: join(*(RANGE(size).shuffle(9, seed=seeds.get(name)) for name in "ab")).batch(5)


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
    return [one.components()[0].numpy().tolist() for one in itertools.islice(iter(batches.next, None), count)]


def in_order(passes=1, **options):
    return Batches(RANGE(7).batch(3).map(lambda x: (x,)), ["x"], {}, passes, **options)


def test_one_batch_is_at_hand_before_it_is_taken():
    batches = in_order()
    assert (batches.size, batches.cardinality) == (3, 3)
    assert batches.at_hand().components()[0].numpy().tolist() == [0, 1, 2]
    assert seen(batches, 9) == [[0, 1, 2], [3, 4, 5], [6]]
    assert batches.size == END
    assert batches.at_hand() is None
    assert batches.like().components()[0].numpy().tolist() == [6]


def test_passes_follow_each_other():
    batches = in_order(passes=2)
    assert seen(batches, 9) == [[0, 1, 2], [3, 4, 5], [6]] * 2
    assert batches.begun == 2


def test_data_without_a_batch_are_at_their_end():
    batches = Batches(RANGE(0).batch(3).map(lambda x: (x,)), ["x"], {}, 3)
    assert batches.next() is batches.like() is None


def test_a_batch_that_cannot_be_fetched_is_told_when_it_is_its_turn():
    def checked(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(4, tf.int64))]):
            return (tf.identity(x),)

    batches = Batches(RANGE(7).batch(3).map(checked), ["x"], {})
    assert seen(batches, 1) == [[0, 1, 2]]
    with pytest.raises(tf.errors.InvalidArgumentError):
        batches.next()


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_a_place_is_found_again(taken):
    first = in_order(passes=2, exact=True)
    seen(first, taken)
    place = first.position(taken), first.begun, taken
    again = in_order(passes=2, exact=True, ahead=False)
    again.seek(*place)
    assert seen(again, 9) == ([[0, 1, 2], [3, 4, 5], [6]] * 2)[taken:]


def test_other_data_are_refused():
    def of(values, **options):
        dataset = tf.data.Dataset.from_tensor_slices((values,)).batch(3)
        return Batches(dataset, ["x"], {}, exact=True, **options)

    first = of(np.arange(7))
    seen(first, 1)
    with pytest.raises(cn.InvalidArgument, match="did not give the batches again"):
        of(np.arange(7) ** 2, ahead=False).seek(first.position(1), first.begun, 1)


def test_sizes_of_batches_of_any_kind():
    ragged = tf.ragged.constant([[1], [2, 3], []])
    sparse = tf.sparse.from_dense(np.eye(4, 5))
    scalar = tf.constant(1.0)
    kinds = (tf.ones([2, 3]), ragged, sparse, (scalar, tf.ones(6)), scalar)
    assert [int(rows(batch)) for batch in kinds] == [2, 3, 4, 6, 1]
    assert dims([tf.ones([2, 3]), ragged, sparse]).numpy().tolist() == [2, 3, 3, 4, 5]


def test_what_the_user_said_of_tuning_stays():
    options = tf.data.Options()
    options.autotune.enabled = True
    assert without_tuning(RANGE(3)).options().autotune.enabled is False
    assert without_tuning(RANGE(3).with_options(options)).options().autotune.enabled is True


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
