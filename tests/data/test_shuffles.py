"""The shuffles of a dataset, and the seeds that they draw; as seen with TensorFlow 2.21."""

import pytest
import tensorflow as tf

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
