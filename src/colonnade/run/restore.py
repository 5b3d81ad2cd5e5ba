"""Bringing an engine to a saved step: the values fit, each by its name, or none is written."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from colonnade.errors import Problem, check
from colonnade.run.bundles import kinds, read
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
    check("fit()", _differences(state, kinds(saved, "values"), num_replicas == len(engine.devices)))
    values = read(saved, "values")
    for name, item in state.common.items():
        item.original.assign(values[name])
    own = {
        name: [values[f"{REPLICAS}{i}/{name}"] for i in range(num_replicas)]
        for name in state.own
        if f"{REPLICAS}0/{name}" in values
    }
    engine.resume(own)


def _differences(state: State, there: Mapping[str, str], same: bool) -> Iterator[Problem]:
    here = {
        name: f"{variable.dtype.name} {variable.shape.as_list()}"
        for name, variable in state.variables().items()
        if same or not name.startswith(REPLICAS)
    }
    for name in sorted(here.keys() | there.keys()):
        if name.startswith(REPLICAS) and not same:
            continue
        if name not in there:
            yield Problem(name, here[name], "is not in the checkpoint", SAME)
        elif name not in here:
            yield Problem(
                name, there[name], "is in the checkpoint, and the training has no such variable", SAME
            )
        elif here[name] != there[name]:
            yield Problem(name, here[name], f"is {there[name]} in the checkpoint", SAME)
