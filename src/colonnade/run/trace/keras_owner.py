"""Finds the Keras variable around a tf.Variable, and the layer whose state it is.

Nothing leads from a `tf.Variable` to either of them, so the objects of the process are looked at; once for
each variable, because that takes some tens of milliseconds. `gc.freeze()` hides objects; see `_Frozen`.
"""

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress
from typing import Any
from weakref import ref

import keras
import tensorflow as tf

LAYERS = (keras.layers.BatchNormalization, keras.layers.RNN)


@dataclass(frozen=True)
class _Known:
    """Weak references: a variable is not to live longer because it was looked at."""

    variable: Any
    keras_variable: Any = None
    layer: Any = None


_KNOWN: dict[int, _Known] = {}  # by the id of the variable, which another one may have later


def keras_variable(variable: tf.Variable) -> Any:
    """The Keras variable around it, or None."""
    reference = _known(variable).keras_variable
    return None if reference is None else reference()


def layer_of(variable: tf.Variable) -> Any:
    """The batch normalisation whose moving mean it is, or the recurrent layer whose state; or None."""
    reference = _known(variable).layer
    return None if reference is None else reference()


def _known(variable: tf.Variable) -> _Known:
    known = _KNOWN.get(id(variable))
    if known is None or known.variable() is not variable:
        _look()
        known = _KNOWN.get(id(variable))
    if known is None or known.variable() is not variable:
        known = _KNOWN[id(variable)] = _Known(ref(variable))
    return known


class _Frozen:
    """What `gc.freeze()` has set aside, and `gc.get_objects()` does not show: weak references to it."""

    def __init__(self) -> None:
        self._count, self._references = 0, list[Any]()

    def of(self, kinds: set[type]) -> list[Any]:
        """The frozen objects of some kinds; they are looked at anew only when there are more of them."""
        count = gc.get_freeze_count()  # which walks through all of them
        if count > self._count:
            gc.unfreeze()
            gc.collect()  # or what is garbage by now would be frozen with the rest
            self._references = [ref(one) for one in _of(kinds, gc.get_objects())]
            gc.freeze()  # as it was, with what has been made since
            count = gc.get_freeze_count()
        self._count = count
        return [one for reference in self._references if (one := reference()) is not None]


_FROZEN = _Frozen()


def _look() -> None:
    kinds = _kinds(keras.Variable, *LAYERS)
    alive = [*_FROZEN.of(kinds), *_of(kinds, gc.get_objects())]
    layers = {id(v): layer for layer in alive if isinstance(layer, LAYERS) for v in _states(layer)}
    for number in [number for number, known in _KNOWN.items() if known.variable() is None]:
        del _KNOWN[number]
    for one in alive:
        if isinstance(one, keras.Variable):
            variable = one.value
            layer = layers.get(id(variable))
            _KNOWN[id(variable)] = _Known(ref(variable), ref(one), None if layer is None else ref(layer))


def _states(layer: Any) -> list[Any]:
    if isinstance(layer, keras.layers.BatchNormalization):
        return [layer.moving_mean.value] if layer.built else []
    return [state.value for state in tf.nest.flatten(layer.states or []) if isinstance(state, keras.Variable)]


def _of(kinds: set[type], objects: list[Any]) -> Iterable[Any]:
    # Without a line of Python for each of some hundred thousand objects.
    return compress(objects, map(kinds.__contains__, map(type, objects)))


def _kinds(*classes: type) -> set[type]:
    """The classes and all that inherit from them."""
    kinds = set(classes)
    for above in classes:
        kinds |= _kinds(*above.__subclasses__())
    return kinds
