"""Batch normalisations that a trace calls in training, and the same model without what they do there."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from colonnade.run.trace.keras_owner import layers_of
from colonnade.run.trace.traced import Traced


def norms_of_slices(traced: Traced) -> list[Any]:
    """Batch normalisations whose statistics are those of the slice."""
    layers = {id(layer): layer for layer in layers_of(traced.written)}
    norm = keras.layers.BatchNormalization
    return [layer for layer in layers.values() if isinstance(layer, norm) and not layer.synchronized]


@contextmanager
def frozen(norms: Sequence[Any]) -> Iterator[None]:
    """While they do as without training: they take the moving averages."""
    for layer in norms:
        layer.trainable = False
    try:
        yield
    finally:
        for layer in norms:
            layer.trainable = True
