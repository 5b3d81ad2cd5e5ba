"""Numbers that come back from fewer bytes, to what these bytes can hold."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.machines.compression import BLOCK, compressed, num_words, restored

SIZES = (1, 2, 3, 255, 256, 257, 1000)


def there_and_back(values, kind):
    words = compressed(tf.constant(values), kind)
    assert words.dtype == tf.int32
    assert words.shape == (num_words(len(values), kind),)
    return restored(words, len(values), kind).numpy()


def drawn(size):
    return np.random.default_rng(size).normal(size=size).astype("float32")


@pytest.mark.parametrize("size", SIZES)
def test_as_they_are(size):
    assert (there_and_back(drawn(size), None) == drawn(size)).all()


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_keeps_eight_bits(size):
    values = drawn(size)
    assert np.abs(there_and_back(values, "bfloat16") - values).max() <= (np.abs(values) / 2**8).max()


@pytest.mark.parametrize("size", SIZES)
def test_int8_is_off_by_half_a_step_of_its_block(size):
    values = drawn(size)
    back = there_and_back(values, "int8")
    for begin in range(0, size, BLOCK):
        block = slice(begin, begin + BLOCK)
        step = np.abs(values[block]).max() / 127
        assert np.abs(back[block] - values[block]).max() <= step / 2 * (1 + 1e-5)


def test_the_largest_of_a_block_comes_back_as_it_was():
    values = np.array([127.0, -127.0, 1.0, 0.4, 0.6], "float32")
    assert there_and_back(values, "int8").tolist() == [127.0, -127.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_nothing_stays_nothing(kind):
    assert there_and_back(np.zeros(300, "float32"), kind).tolist() == [0.0] * 300


def test_what_is_sent_is_smaller():
    assert num_words(10_000, "bfloat16") == 5_000
    assert num_words(10_240, "int8") == 40 * 65
