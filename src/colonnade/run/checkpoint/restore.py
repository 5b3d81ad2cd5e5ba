"""Reads a saved step back into the variables of a training: all of them fit by name, or none is written."""

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.checkpoint.tensor_files import kinds, read
from colonnade.run.variables.part_offset import BAR, slice_of
from colonnade.run.variables.saved_state import OF_MODE, REPLICAS, Resumable, SavedState

SAME = "Go on with the model and optimizer that were saved, or use another directory"


def restore(engine: Resumable, saved: Path, num_replicas: int) -> None:
    """Give a prepared engine the values of a saved step.

    Args:
        engine: the engine; it may train in another mode than was saved, on another number of devices, and
            with other homes of its variables.
        saved: the directory of the step, which was found whole.
        num_replicas: on how many devices it was saved.
    """
    state = engine.state()
    there = kinds(saved, "values")
    check("fit()", _differences(state, there, num_replicas == engine.num_replicas))
    replicas = {
        name: [f"{REPLICAS}{i}/{name}" for i in range(num_replicas)]
        for name in state.own
        if f"{REPLICAS}0/{name}".partition(BAR)[0] in there
    }
    common = [name for name in state.common if name.partition(BAR)[0] in there]
    values = read(saved, "values", [*common, *(name for names in replicas.values() for name in names)])
    for name in common:
        state.common[name].original.assign(values[name])
    for name in state.common.keys() - values.keys():
        item = state.common[name]
        if item.otherwise is not None:  # which has its saved value by now
            item.original.assign(tf.cast(item.otherwise, item.original.dtype))
    _warn_of_another_mode(state, there)
    engine.resume({name: [values[one] for one in names] for name, names in replicas.items()})


def _differences(state: SavedState, there: Mapping[str, tf.TensorSpec], same: bool) -> Iterator[Problem]:
    here = {
        name.partition(BAR)[0]: _whole(variable)
        for name, variable in state.variables().items()
        if same or not name.startswith(REPLICAS)
    }
    for name in sorted(here.keys() | there.keys()):
        both = name in here and name in there
        if (name.startswith(REPLICAS) and not (same and both)) or (name.startswith(OF_MODE) and not both):
            continue
        if name not in there:
            yield Problem(name, _said(here[name]), "is not in the checkpoint", SAME)
        elif name not in here:
            rule = "is in the checkpoint, and the training has no such variable"
            yield Problem(name, _said(there[name]), rule, SAME)
        elif not _fits(here[name], there[name]):
            yield Problem(name, _said(here[name]), f"is {_said(there[name])} in the checkpoint", SAME)


def _warn_of_another_mode(state: SavedState, there: Mapping[str, tf.TensorSpec]) -> None:
    kept = ({name for name in names if name.startswith(OF_MODE)} for names in (state.common, there))
    here, saved = kept
    if here != saved:
        begun, left = sorted(here - saved), sorted(saved - here)
        said = [f"{', '.join(begun)} begins anew"] if begun else []
        said += [f"{', '.join(left)} is left out"] if left else []
        warnings.warn(f"The step was saved in another mode (sync=): {'; '.join(said)}.", stacklevel=2)


def _whole(variable: tf.Variable) -> tf.TensorSpec:
    cut = slice_of(variable)
    return tf.TensorSpec(cut.shape if cut else variable.shape, variable.dtype)


def _fits(here: tf.TensorSpec, there: tf.TensorSpec) -> bool:
    """A variable with an open shape takes every value of it."""
    return here.dtype == there.dtype and here.shape.is_compatible_with(there.shape)


def _said(kind: tf.TensorSpec) -> str:
    return f"{kind.dtype.name} {kind.shape.as_list() if kind.shape.rank is not None else 'of any shape'}"
