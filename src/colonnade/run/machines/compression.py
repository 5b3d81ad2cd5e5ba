"""Numbers in fewer bytes, for machines that exchange what their parameters have moved by.

    bfloat16   two bytes a number: the leading eight bits of its fraction
    int8       one byte a number: whole numbers from -127 to 127, times a scale for each block of 256

They travel as words of 32 bits, which go round as they are.
"""

from typing import Any

import tensorflow as tf

KINDS = (None, "bfloat16", "int8")
BLOCK = 256


def compressed(flat: Any, kind: str | None) -> Any:
    """A vector of float32 as words (int32)."""
    if kind is None:
        return tf.bitcast(flat, tf.int32)
    if kind == "bfloat16":
        pairs = tf.reshape(_padded(flat, 2), [-1, 2])
        return tf.bitcast(tf.cast(pairs, tf.bfloat16), tf.int32)
    blocks = tf.reshape(_padded(flat, BLOCK), [-1, BLOCK])
    scales = tf.reduce_max(tf.abs(blocks), axis=1) / 127
    whole = tf.round(tf.math.divide_no_nan(blocks, scales[:, None]))
    numbers = tf.bitcast(tf.reshape(tf.cast(whole, tf.int8), [-1, 4]), tf.int32)
    return tf.concat([numbers, tf.bitcast(scales, tf.int32)], axis=0)


def restored(words: Any, size: int, kind: str | None) -> Any:
    """So many numbers from the words that `compressed` made of them."""
    if kind is None:
        return tf.bitcast(words, tf.float32)
    if kind == "bfloat16":
        return tf.cast(tf.reshape(tf.bitcast(words, tf.bfloat16), [-1]), tf.float32)[:size]
    num_blocks = -(-size // BLOCK)
    numbers, scales = tf.split(words, [num_blocks * BLOCK // 4, num_blocks])
    whole = tf.cast(tf.reshape(tf.bitcast(numbers, tf.int8), [num_blocks, BLOCK]), tf.float32)
    return tf.reshape(whole * tf.bitcast(scales, tf.float32)[:, None], [-1])[:size]


def num_words(size: int, kind: str | None) -> int:
    """Words that so many numbers take."""
    num_blocks = -(-size // BLOCK)
    return {None: size, "bfloat16": -(-size // 2)}.get(kind, num_blocks * (BLOCK // 4 + 1))


def _padded(flat: Any, multiple: int) -> Any:
    return tf.pad(flat, [[0, -flat.shape[0] % multiple]])
