"""Traces functions of Colonnade's own: without AutoGraph, and without garbage collection meanwhile."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from colonnade.run.move.slices_ahead import HOST


def concrete(fn: Callable[..., Any], *specs: Any) -> Any:
    """A function of ours as a concrete function, traced at once."""
    with undisturbed():
        return tf.function(unconverted(fn), autograph=False).get_concrete_function(*specs)


def hosted(fn: Callable[..., Any], *specs: Any) -> Any:
    """The same, with what has no device of its own on the host: else it would be on the first card.

    That is above all the cutting of a batch, whose slices would reach the other cards from there.
    """

    def placed(*args: Any) -> Any:
        with tf.device(HOST):
            return fn(*args)

    function = concrete(placed, *specs)

    def call(*args: Any) -> Any:
        with tf.device(HOST):  # a call is where its arguments go
            return function(*args)

    call.graph = function.graph  # type: ignore[attr-defined]
    return call


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
