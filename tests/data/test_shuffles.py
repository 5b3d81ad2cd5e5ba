"""The shuffles of a dataset, and the seeds that they draw; as seen with TensorFlow 2.21."""

import pytest
import tensorflow as tf

from colonnade.run.data.iterator_state import num_shuffles_at_work, save_iterator
from colonnade.run.data.shuffles import Shuffles

RANGE = tf.data.Dataset.range


@pytest.mark.parametrize(
    ("dataset", "count", "repeated", "cached"),
    [
        (RANGE(9).batch(3), 0, False, False),
        (RANGE(9).shuffle(4).batch(3), 1, False, False),
        (RANGE(9).shuffle(4).batch(3).repeat(2), 1, True, False),
        (RANGE(9).repeat(2).shuffle(4), 1, False, False),
        (RANGE(9).shuffle(4).cache().shuffle(5), 2, False, True),
        (RANGE(9).cache().shuffle(5), 1, False, False),
        (tf.data.Dataset.zip((RANGE(9).shuffle(4), RANGE(9).shuffle(5))), 2, False, False),
        (RANGE(9).shuffle(4).concatenate(RANGE(9).shuffle(5)), 2, False, False),
    ],
)
def test_shuffles_below_a_dataset(dataset, count, repeated, cached):
    found = Shuffles.of(dataset.prefetch(1))
    assert (len(found.each), found.repeated, found.cached) == (count, repeated, cached)


def test_words_tell_size_and_seeds():
    def words(**options):
        return Shuffles.of(RANGE(9).shuffle(4, **options)).words

    assert words(seed=1) == words(seed=1)
    assert words(seed=1) != words(seed=2)
    assert words(seed=1) != Shuffles.of(RANGE(9).shuffle(5, seed=1)).words


def test_begun_shuffles_have_drawn_the_seeds_of_earlier_passes():
    def made():
        return RANGE(50).shuffle(50, seed=3)

    def order(dataset):
        return [int(x) for x in dataset]

    passes = made()
    first, second, third = (order(passes) for _ in range(3))
    assert first != second
    assert second != third
    later = made()
    Shuffles.of(later).begin(2)
    assert order(later) == third


# Canaries. If one fails with another version of TensorFlow, its iterators write other words, and `SHUFFLE` in
# `iterator_state` or in `shuffles` has to follow: what is at stake is the order of data after a resume.
HERE = f"seen with TensorFlow 2.21.0; this is {tf.__version__}"


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda: RANGE(100).batch(5), 0),
        (lambda: RANGE(100).shuffle(9), 1),
        (lambda: RANGE(100).shuffle(9, seed=1, reshuffle_each_iteration=False), 1),
        (lambda: RANGE(100).shuffle(9).batch(5).shuffle(3).prefetch(2), 2),
        (lambda: tf.data.Dataset.zip(tuple(RANGE(100).shuffle(9) for _ in range(3))), 3),
    ],
)
def test_every_shuffle_writes_its_word_into_the_state_of_an_iterator_once(make, count):
    dataset = make()
    iterator = iter(dataset)
    next(iterator)
    assert num_shuffles_at_work(save_iterator(iterator, "fit()")) == count, HERE
    assert len(Shuffles.of(dataset).each) == count, HERE


def test_tensorflow_says_the_buffer_and_the_seeds_of_a_shuffle():
    """Of one that never reshuffles, the first seed twice; so only whether it has seeds can be told."""
    tf.random.set_seed(None)  # whatever other tests have set
    seeded = RANGE(9).shuffle(4, seed=7)
    again = seeded.shuffle(5, seed=8, reshuffle_each_iteration=False)
    words = ["ShuffleDatasetOp(5, 87654321, 87654321, 1)", "ShuffleDatasetOp(4, 87654321, 7, 1)"]
    assert Shuffles.of(again).words == words, HERE
    for reshuffle in (True, False):
        one, other = (Shuffles.of(RANGE(9).shuffle(4, None, reshuffle)).words for _ in range(2))
        assert one != other, HERE


def test_functions_may_hide_shuffles():
    plain = tf.data.Dataset.from_tensor_slices([1, 2, 3]).shuffle(9).batch(2, drop_remainder=True).prefetch(2)
    assert not Shuffles.of(plain).hidden
    assert Shuffles.of(plain.map(lambda x: x)).hidden
    assert Shuffles.of(plain.flat_map(tf.data.Dataset.from_tensor_slices)).hidden


def test_a_cache_is_found_wherever_it_is():
    assert not Shuffles.of(tf.data.Dataset.range(3).shuffle(3)).caches
    assert Shuffles.of(tf.data.Dataset.range(3).cache().shuffle(3)).caches
