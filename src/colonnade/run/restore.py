"""Bringing an engine to a saved step: the values fit, each by its name, or none is written."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.bundles import kinds, read
from colonnade.run.slices import BAR, slice_of
from colonnade.run.state import REPLICAS, Resumable, State

SAME = "Go on with the model and optimizer that were saved, or use another directory"


def restore(engine: Resumable, saved: Path, num_replicas: int) -> None:
    """Give a prepared engine the values of a saved step.

    Args:
        engine: the engine; it may have another number of devices than was saved, and other homes of
            its variables.
        saved: the directory of the step, which was found whole.
        num_replicas: on how many devices it was saved.
    """
    state = engine.state()
    there = kinds(saved, "values")
    check("fit()", _differences(state, there, num_replicas == len(engine.devices)))
    replicas = {
        name: [f"{REPLICAS}{i}/{name}" for i in range(num_replicas)]
        for name in state.own
        if f"{REPLICAS}0/{name}".partition(BAR)[0] in there
    }
    values = read(saved, "values", [*state.common, *(name for names in replicas.values() for name in names)])
    for name, item in state.common.items():
        item.original.assign(values[name])
    engine.resume({name: [values[one] for one in names] for name, names in replicas.items()})


def _differences(state: State, there: Mapping[str, tf.TensorSpec], same: bool) -> Iterator[Problem]:
    here = {
        name.partition(BAR)[0]: _whole(variable)
        for name, variable in state.variables().items()
        if same or not name.startswith(REPLICAS)
    }
    for name in sorted(here.keys() | there.keys()):
        if name.startswith(REPLICAS) and not same:
            continue
        if name not in there:
            yield Problem(name, _said(here[name]), "is not in the checkpoint", SAME)
        elif name not in here:
            rule = "is in the checkpoint, and the training has no such variable"
            yield Problem(name, _said(there[name]), rule, SAME)
        elif not _fits(here[name], there[name]):
            yield Problem(name, _said(here[name]), f"is {_said(there[name])} in the checkpoint", SAME)


def _whole(variable: tf.Variable) -> tf.TensorSpec:
    cut = slice_of(variable)
    return tf.TensorSpec(cut.shape if cut else variable.shape, variable.dtype)


def _fits(here: tf.TensorSpec, there: tf.TensorSpec) -> bool:
    """A variable with an open shape takes every value of it."""
    return here.dtype == there.dtype and here.shape.is_compatible_with(there.shape)


def _said(kind: tf.TensorSpec) -> str:
    return f"{kind.dtype.name} {kind.shape.as_list() if kind.shape.rank is not None else 'of any shape'}"
