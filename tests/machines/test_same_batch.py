"""A digest tells batches apart, whatever they hold."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.machines.same_batch import SAMPLE, _places, digest, kind_of

DRAW = np.random.default_rng(0)
BATCHES = {
    "floats": DRAW.normal(size=(8, 3)).astype("float32"),
    "doubles": DRAW.normal(size=(8, 3)),
    "halves": DRAW.normal(size=(8, 3)).astype("float16"),
    "bfloat16": tf.cast(DRAW.normal(size=(8, 3)), tf.bfloat16),
    "bytes": DRAW.integers(0, 255, size=(8, 3)).astype("uint8"),
    "longs": DRAW.integers(-(2**60), 2**60, size=(8, 3)),
    "unsigned": DRAW.integers(0, 2**60, size=(8, 3)).astype("uint64"),
    "complex": (DRAW.normal(size=(8, 3)) + 1j * DRAW.normal(size=(8, 3))).astype("complex64"),
    "truth": DRAW.integers(0, 2, size=(8, 30)).astype(bool),
    "words": np.array([f"word {i}".encode() for i in range(8)]),
    "large": DRAW.normal(size=(64, 1000)).astype("float32"),
}


def told(*tensors):
    return digest([tf.convert_to_tensor(t) for t in tensors]).numpy().tolist()


@pytest.mark.parametrize("name", BATCHES)
def test_the_same_batch_has_the_same_digest_and_another_order_another(name):
    batch = np.asarray(BATCHES[name])
    assert told(batch) == told(batch.copy())
    assert told(batch) != told(batch[::-1])
    assert told(batch) != told(np.roll(batch, 1, axis=0))
    assert told(batch)[0] == len(batch)


def test_a_batch_with_fewer_rows_is_another():
    batch = BATCHES["floats"]
    assert told(batch) != told(batch[:-1])


def test_one_value_of_a_small_batch_counts():
    batch = BATCHES["floats"].copy()
    before = told(batch)
    batch[3, 1] = np.nextafter(batch[3, 1], 9)
    assert told(batch) != before


def test_of_a_large_batch_every_row_is_looked_at():
    batch = BATCHES["large"]
    assert batch.size > SAMPLE
    for row in range(0, 64, 7):
        other = batch.copy()
        other[row] += 1
        assert told(other) != told(batch)


@pytest.mark.parametrize("shape", [(1024, 784), (256, 32, 32, 3), (512, 4096), (4096, 16), (100_000, 3)])
def test_all_columns_are_looked_at(shape):
    """Rows and parts of a batch may divide each other, as with 1024 pictures of MNIST."""
    places = _places(tf.size(tf.zeros(shape))).numpy()
    row = int(np.prod(shape[1:]))
    assert len(np.unique(places)) == len(places) >= SAMPLE
    assert 0 <= places.min() <= places.max() < np.prod(shape)
    assert len(np.unique(places % row)) > min(row, SAMPLE) / 3


def test_pictures_with_black_edges_in_another_order_are_another_batch():
    batch = np.zeros((1024, 28, 28), "float32")
    batch[:, 4:24, 4:24] = DRAW.random((1024, 20, 20))
    batch = batch.reshape(1024, 784)
    assert told(batch) != told(batch[::-1])
    assert told(batch) != told(np.roll(batch, 1, axis=0))
    assert told(batch) == told(batch.copy())


def test_arguments_that_change_places_are_another_batch():
    one, other = BATCHES["floats"], BATCHES["floats"] * 2
    assert told(one, other) != told(other, one)


def test_what_is_not_a_number_is_equal_to_itself():
    batch = np.full((4, 2), np.nan, "float32")
    assert told(batch) == told(batch.copy())
    assert all(0 <= part < 2**16 for part in told(batch))


def test_batches_are_of_one_kind_whatever_they_hold():
    def kind(*tensors):
        return kind_of(Arguments(tensors, {}, ["x", "y"][: len(tensors)]).tensors)

    x = tf.zeros([4, 3])
    assert kind(x) == kind(x + 1) > 0
    others = [kind(tf.zeros([5, 3])), kind(tf.zeros([4, 2])), kind(tf.zeros([4, 3], tf.float64)), kind(x, x)]
    assert len({kind(x), *others}) == 5
    ragged = tf.ragged.constant([[1, 2], [3]])
    assert kind(ragged) != kind(tf.zeros([2, 2], tf.int32))
