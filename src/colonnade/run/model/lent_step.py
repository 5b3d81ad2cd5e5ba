"""Functions that Keras calls for batches, lent to a model in place of its own for as long as a call takes."""

from collections.abc import Iterator
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
