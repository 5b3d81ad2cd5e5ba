"""Methods of Keras's models, optimizers and metrics that do something else for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras


@contextmanager
def lent(model: keras.Model, at_a_time: int = 1, **functions: Any) -> Iterator[None]:
    """While Keras calls these; then the model has its own again, with their traces.

    Args:
        model: whose.
        at_a_time: how many batches a function takes at a time, of each that Keras would give it.
        **functions: `train_function` and such; None leaves the model's own.
    """
    given = {name: function for name, function in functions.items() if function is not None}
    before, steps = {name: getattr(model, name) for name in given}, model.steps_per_execution
    for name, function in given.items():
        setattr(model, name, function)
    model.steps_per_execution = steps * at_a_time
    try:
        yield
    finally:
        model.steps_per_execution = steps
        for name, function in given.items():
            if getattr(model, name) is function:  # else the model was compiled meanwhile, which forgets all
                setattr(model, name, before[name])


def with_own(method: str) -> list[type]:
    """The classes of optimizers that have a method of their own."""
    above = [kind for kind in keras.optimizers.Optimizer.__mro__ if method in vars(kind)]
    return [*above[:1], *(k for k in _below(keras.optimizers.Optimizer) if method in vars(k))]


def _below(kind: type) -> Iterator[type]:
    subclasses: list[type] = kind.__subclasses__()
    for other in subclasses:
        yield other
        yield from _below(other)


@contextmanager
def exchanged(owner: Any, name: str, other: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def updating(metric: Any, update: Callable[..., Any]) -> Iterator[None]:
    """An attribute of the metric itself, past Keras's own way of setting attributes."""
    vars(metric)["update_state"] = update
    try:
        yield
    finally:
        del vars(metric)["update_state"]
