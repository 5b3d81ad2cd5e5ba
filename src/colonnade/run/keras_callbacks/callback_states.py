"""The states of Keras callbacks, so that a training that is cut goes on with them.

A callback with `get_state` and `set_state` says itself what to keep. Of all others the plain attributes are
kept that a training has changed: numbers, texts and arrays, in lists, tuples and dicts.
"""

import warnings
from collections.abc import Sequence, Sized
from copy import deepcopy
from typing import Any

import keras
import numpy as np

from colonnade.errors import Problem, check
from colonnade.run.checkpoint.nest_tensors import is_plain, to_tensors

# These begin anew: they show or write, and set out from the numbers that they are called with.
STATELESS = (keras.callbacks.ProgbarLogger, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
# What Keras gives to every callback.
GIVEN = ("params", "model", "_model")
# Keras turns its sign when it makes a `monitor_op`, which is a function and made anew.
TURNED = ("min_delta",)


class CallbackStates:
    """What some callbacks have changed since a fit began.

    Args:
        callbacks: those of the fit, in order.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = [c for c in callbacks if not isinstance(c, STATELESS)]
        self._first = [_attributes(callback) for callback in self._callbacks]
        self._begun: list[dict[str, Any]] = []
        self._warned: set[str] = set()

    def note_begin(self) -> None:
        """After `on_train_begin`, in which callbacks set out anew."""
        self._begun = [_attributes(callback) for callback in self._callbacks]

    def get(self) -> list[Any]:
        """The name of each callback, and what is kept of it."""
        return [[type(c).__name__, self._of(i, c)] for i, c in enumerate(self._callbacks)]

    def _of(self, i: int, callback: Any) -> Any:
        if _speaks(callback):
            state = callback.get_state()
            check("fit()", _unkept(callback, state))
            return state
        first, begun, now = self._first[i], self._begun[i], _attributes(callback)
        self._warn(callback, [name for name in now if _is_lost(now[name], first.get(name))])
        return {
            name: value
            for name, value in now.items()
            if is_plain(value) and not (_same(value, first, name) and _same(value, begun, name))
        }

    def _warn(self, callback: Any, lost: Sequence[str]) -> None:
        names = [f"{type(callback).__name__}.{name}" for name in lost]
        new = [name for name in names if name not in self._warned]
        self._warned.update(new)
        if new:
            warnings.warn(
                f"A run that goes on from a checkpoint will not be the same: {', '.join(new)} cannot be "
                "kept. Only numbers, texts and arrays in lists, tuples and dicts can; or give the callback "
                "get_state() and set_state(state).",
                stacklevel=2,
            )

    def set(self, saved: Sequence[Any], step: int, *, partly: bool = False) -> None:
        """Put back what `get` gave in an earlier run; of several of a class, the first is the first.

        Args:
            saved: what it gave.
            step: the saved step, for messages.
            partly: whether some of them may be missing here. Of a class of which some are, all begin anew.
        """
        if partly:
            here, kinds = ([type(c).__name__ for c in self._callbacks], [kind for kind, _ in saved])
            saved = [one for one in saved if here.count(one[0]) == kinds.count(one[0])]
        there = {kind: [c for c in self._callbacks if type(c).__name__ == kind] for kind, _ in saved}
        pairs = [(kind, there[kind].pop(0) if there[kind] else None, state) for kind, state in saved]
        check("fit()", _missing([kind for kind, c, state in pairs if c is None and state], step))
        for _, callback, state in pairs:
            if callback is not None and _speaks(callback):
                callback.set_state(state)
            elif callback is not None:
                vars(callback).update(deepcopy(state))


def go_on_writing(callbacks: Sequence[Any]) -> None:
    """Before the callbacks of a fit that goes on begin: a file with a row per epoch keeps its rows."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def _speaks(callback: Any) -> bool:
    return all(callable(getattr(callback, name, None)) for name in ("get_state", "set_state"))


def _attributes(callback: Any) -> dict[str, Any]:
    """Those it has now: plain ones as they are at this moment, others themselves."""
    others = (*GIVEN, *(TURNED if hasattr(callback, "monitor_op") else ()))
    known = {name: value for name, value in vars(callback).items() if name not in others}
    return {name: deepcopy(value) if is_plain(value) else value for name, value in known.items()}


def _is_lost(value: Any, first: Any) -> bool:
    """Whether it may have changed, and cannot be kept."""
    if is_plain(value) or callable(value):
        return False
    return isinstance(value, Sized) or value is not first


def _same(value: Any, others: dict[str, Any], name: str) -> bool:
    if name not in others or not is_plain(others[name]):
        return False
    one, other = to_tensors("", value), to_tensors("", others[name])
    return one.keys() == other.keys() and all(np.array_equal(a, other[key]) for key, a in one.items())


def _missing(kinds: Sequence[str], step: int) -> list[Problem]:
    rule = f"had a state when step {step} was saved, and is not among the callbacks now"
    fix = "Pass the same callbacks, or use another directory"
    return [Problem("callbacks", kind, rule, fix) for kind in kinds]


def _unkept(callback: Any, state: Any) -> list[Problem]:
    if is_plain(state):
        return []
    rule = "must return numbers, texts and arrays, in lists, tuples and dicts, to be kept by a checkpoint"
    fix = "Leave out what can be made again"
    return [Problem(f"{type(callback).__name__}.get_state()", type(state).__name__, rule, fix)]
