"""A step that is kept with its model, so that training it once more traces nothing.

As Keras does, a step is used again until the model is compiled anew, or other variables are trained. It is
kept in the model itself and goes with it.
"""

from dataclasses import dataclass
from typing import Any

import keras

from colonnade.run.model.training_step import all_metrics

NAME = "_colonnade_step"


@dataclass(frozen=True)
class KeptStep:
    """A step, and what it was made for."""

    how: tuple[Any, ...]  # devices and such, which must be equal
    parts: tuple[Any, ...]  # of the model, which must be the same
    step: Any


def keep(model: keras.Model, how: tuple[Any, ...], step: Any) -> None:
    """After a training."""
    vars(model)[NAME] = KeptStep(how, _parts(model), step)


def kept(model: keras.Model, how: tuple[Any, ...]) -> Any:
    """The step of the last training, if it fits; else None."""
    known = vars(model).get(NAME)
    if known is None or known.how != how:
        return None
    parts = _parts(model)
    same = len(parts) == len(known.parts) and all(map(lambda a, b: a is b, parts, known.parts))
    return known.step if same else None


def _parts(model: keras.Model) -> tuple[Any, ...]:
    """What `compile` makes, and what is trained."""
    return (model.optimizer, model.loss, *all_metrics(model), *model.trainable_variables)
