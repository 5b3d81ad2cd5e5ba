"""Finds the Keras variable around a tf.Variable, and the layer whose state it is.

Nothing leads from a `tf.Variable` to either of them, so the objects of the process are looked at; once for
many variables, because that takes some tens of milliseconds. `gc.freeze()` hides objects; see `_Living`.
"""

import gc
from collections.abc import Iterable, Sequence
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
_NOBODY = _Known(lambda: None)


def keras_variables(variables: Iterable[tf.Variable]) -> list[Any]:
    """The Keras variable around each of them, or None."""
    return [None if (around := known.keras_variable) is None else around() for known in _known(variables)]


def keras_variable(variable: tf.Variable) -> Any:
    """The Keras variable around it, or None."""
    return keras_variables([variable])[0]


def not_frozen(variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Without the variables of Keras layers that were set to `trainable = False`.

    A tf.Variable does not know of that; only the Keras variable around it does.
    """
    owners = keras_variables(variables)
    return [v for v, owner in zip(variables, owners, strict=True) if owner is None or owner.trainable]


def layers_of(variables: Iterable[tf.Variable]) -> list[Any]:
    """Of each: the batch norm whose moving mean it is, or the recurrent layer whose state; or None."""
    return [None if (layer := known.layer) is None else layer() for known in _known(variables)]


def layer_of(variable: tf.Variable) -> Any:
    """The batch normalisation whose moving mean it is, or the recurrent layer whose state; or None."""
    return layers_of([variable])[0]


def _known(variables: Iterable[tf.Variable]) -> list[_Known]:
    variables = list(variables)
    if any(_KNOWN.get(id(v), _NOBODY).variable() is not v for v in variables):
        _look()
    for variable in variables:
        if _KNOWN.get(id(variable), _NOBODY).variable() is not variable:
            _KNOWN[id(variable)] = _Known(ref(variable))
    return [_KNOWN[id(variable)] for variable in variables]


class _Canary:
    """An object that `gc.get_objects()` shows until somebody calls `gc.freeze()`."""


class _Living:
    """The objects of some kinds. What `gc.freeze()` has set aside is kept as weak references.

    To count what is frozen is to walk through all of it, so a canary tells whether there is more by now.
    """

    def __init__(self) -> None:
        self._frozen = list[Any]()
        self._canary = _Canary() if gc.get_freeze_count() == 0 else None

    def of(self, kinds: set[type]) -> list[Any]:
        kinds = {*kinds, _Canary}
        seen = list(_of(kinds, gc.get_objects()))
        if not any(one is self._canary for one in seen):
            gc.unfreeze()
            gc.collect()  # or what is garbage by now would be frozen with the rest
            everything = [one for one in _of(kinds, gc.get_objects()) if not isinstance(one, _Canary)]
            gc.freeze()  # as it was, with what has been made since
            self._frozen = [ref(one) for one in everything]
            self._canary = _Canary()
            seen = []
        frozen = [one for reference in self._frozen if (one := reference()) is not None]
        return [*frozen, *(one for one in seen if one is not self._canary)]


_LIVING = _Living()


def _look() -> None:
    alive = _LIVING.of(_kinds(keras.Variable, *LAYERS))
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
