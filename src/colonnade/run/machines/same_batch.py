"""Sees that machines which read the same data have the same batch before them.

Each cuts its rows out of the batch, so a batch in another order on one machine would count some examples
twice and others never, and nothing else would show it.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# Numbers of a tensor that are looked at, spread evenly over it.
SAMPLE = 4096
HALF = 2**16
DRAW = 2654435761  # about 2^32 by the golden ratio: products with whole numbers spread evenly over 2^32


def digest(components: Sequence[Any]) -> Any:
    """Three whole numbers below 2^16 that tell batches apart, as floats: they travel with the loss.

    Whole numbers are added, so the order of adding, which differs by machine, does not matter.
    """
    total = tf.constant(0)
    for place, tensor in enumerate(components, 1):
        total = total * 31 + place * _digest(tensor)
    rows = tf.shape(components[0])[0] if components and components[0].shape.rank else tf.constant(1)
    low = tf.bitwise.bitwise_and(total, HALF - 1)
    high = tf.bitwise.bitwise_and(tf.bitwise.right_shift(total, 16), HALF - 1)
    return tf.stack([tf.bitwise.bitwise_and(rows, HALF - 1), low, high])


def kind_of(leaves: Sequence[Any]) -> int:
    """A number above 0 for the names, dims and dtypes of a batch's tensors, on which its graph depends."""
    kinds = [(leaf.path, tuple(leaf.value.shape), leaf.value.dtype.name) for leaf in leaves]
    return 1 + zlib.crc32(repr(kinds).encode())


def _digest(tensor: Any) -> Any:
    flat = tf.reshape(tensor, [-1])
    places = _places(tf.size(flat))
    bits = _bits(tf.gather(flat, places))
    return tf.reduce_sum(bits * (places + 1)) + tf.size(flat)


def _places(size: Any) -> Any:
    """Where to look: at one place in each of some equal parts, as if drawn by lot, the same on all machines.

    At the same place of every part one might see a few columns only, and of pictures nothing but the border.
    """
    step = tf.maximum(size // SAMPLE, 1)
    part = tf.range(size // step)
    drawn = tf.bitwise.right_shift(tf.cast(part, tf.int64) * DRAW % 2**32, 8)
    return part * step + tf.cast(drawn, tf.int32) % step


def _bits(flat: Any) -> Any:
    """32 bits of each value."""
    if flat.dtype == tf.string:
        return tf.cast(tf.strings.to_hash_bucket_fast(flat, 2**31 - 1), tf.int32)
    if flat.dtype.is_complex:
        return _bits(tf.math.real(flat)) + 31 * _bits(tf.math.imag(flat))
    if flat.dtype.is_floating:
        wide = {2: tf.int16, 4: tf.int32, 8: tf.int64}.get(flat.dtype.size)
        flat = tf.bitcast(flat, wide) if wide is not None else tf.cast(flat, tf.float32)
    if flat.dtype in (tf.int64, tf.uint64):
        halves = tf.bitcast(flat, tf.int32)
        return halves[:, 0] + 31 * halves[:, 1]
    return tf.cast(flat, tf.int32)
