"""Steps that are kept with their model, so that training it or evaluating it once more traces nothing.

As Keras does, a step is used again until the model is compiled anew, whatever is frozen meanwhile, or its
variables are others (`quantize`). It is kept in the model itself and goes with it.
"""

from dataclasses import dataclass
from typing import Any

import keras

from colonnade.run.model.training_step import all_metrics

NAME = "_colonnade_steps"
# How many of a kind: a step that trains may have copies of all variables on every device.
MOST = {"train": 1, "test": 4, "predict": 4}


@dataclass(frozen=True)
class KeptStep:
    """A step, and what it was made for."""

    kind: str  # train, test or predict
    how: tuple[Any, ...]  # devices and such, which must be equal
    parts: tuple[Any, ...]  # of the model, which must be the same
    step: Any

    def serves(self, model: keras.Model) -> bool:
        """Whether the model is what it was."""
        parts = _parts(model)
        return len(parts) == len(self.parts) and all(map(lambda a, b: a is b, parts, self.parts))


def keep(model: keras.Model, kind: str, how: tuple[Any, ...], step: Any) -> None:
    """After it was used; those of the kind that were not used for the longest time are let go."""
    others = [known for known in _of(model) if known.serves(model) and (known.kind, known.how) != (kind, how)]
    alike = [known for known in others if known.kind == kind]
    gone = alike[: max(0, len(alike) + 1 - MOST[kind])]
    left = [known for known in others if not any(known is old for old in gone)]
    vars(model)[NAME] = [*left, KeptStep(kind, how, _parts(model), step)]


def kept(model: keras.Model, kind: str, how: tuple[Any, ...]) -> Any:
    """The step that was used for this before, if the model is still the same; else None."""
    fitting = [known for known in _of(model) if (known.kind, known.how) == (kind, how)]
    return fitting[0].step if fitting and fitting[0].serves(model) else None


def _of(model: keras.Model) -> list[KeptStep]:
    known: list[KeptStep] = vars(model).get(NAME, [])
    return known


def _parts(model: keras.Model) -> tuple[Any, ...]:
    """What `compile` makes, and what the model is made of."""
    return (getattr(model, "optimizer", None), model.loss, *all_metrics(model), *model.variables)
