"""Keras in float64, where what should be equal is."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def in_double(*, anew: bool = False) -> Iterator[None]:
    """Keras computes in float64 meanwhile, and then as before; `anew`: names are as in a new process."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    if anew:
        keras.utils.clear_session()  # the policy goes with it
    keras.config.set_floatx("float64")  # Keras casts what regularises, and the learning rate, to it
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx(before[0])
        keras.config.set_dtype_policy(before[1])
