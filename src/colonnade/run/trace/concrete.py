"""Traces functions of Colonnade's own: without AutoGraph, and without garbage collection meanwhile."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


def concrete(fn: Callable[..., Any], *specs: Any) -> Any:
    """A function of ours as a concrete function, traced at once."""
    with undisturbed():
        return tf.function(unconverted(fn), autograph=False).get_concrete_function(*specs)


def unconverted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Keep AutoGraph, which is for the user's code, out of ours: it takes seconds."""
    return tf.autograph.experimental.do_not_convert(fn)


@contextmanager
def undisturbed() -> Iterator[None]:
    """While a graph is traced, Python does not look for garbage.

    It would look again and again, because a graph is many objects that stay; through all of TensorFlow's
    too.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
