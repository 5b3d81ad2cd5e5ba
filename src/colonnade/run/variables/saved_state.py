"""Which variables of a training a checkpoint holds, each under its name; `checkpoint` writes them.

An engine that can be saved offers four things (`Resumable`); `Lockstep` is one, and others may follow:
`prepare` makes all variables, `state` tells where their values are, `resume` is called when the values
of a saved step have been written back, and `next_join` tells after which steps a save makes sense.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.variables.aggregation import another_stream
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.part_offset import BAR, PART, mark_slots, slice_of

REPLICAS = "replicas/"
METRICS = "metrics/"  # of a Keras model
# What only some modes keep: how many gradients were applied, what a join needs, the steps without an update.
OF_MODE = ("pushes/", "join/", "skips")


@dataclass(frozen=True)
class Item:
    """A variable of which there is one value, whatever the number of devices."""

    original: tf.Variable  # the user's; a saved value is written back here
    current: tf.Variable  # holds the value between two steps
    otherwise: tf.Variable | None = None  # whose value it takes if it was saved in a mode that has it not


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint keeps of an engine.

    Names are those of the tensors in a checkpoint. What is in `common` must be found there with the same
    shape and dtype, except what only some modes keep (`OF_MODE`); what replicas have of their own is found
    again on the same number of devices only, and in the same mode.
    """

    common: dict[str, Item]
    own: dict[str, tuple[tf.Variable, ...]]  # a variable for each replica
    random: frozenset[str]  # the names in `own` that are states of random generators
    lost: tuple[str, ...] = ()  # what cannot be kept, in words

    def variables(self) -> dict[str, tf.Variable]:
        """The variables to read, by the names of the tensors in a checkpoint."""
        variables = {name: item.current for name, item in self.common.items()}
        for name, copies in self.own.items():
            variables |= {f"{REPLICAS}{i}/{name}": copy for i, copy in enumerate(copies)}
        return variables

    def snapshot(self) -> dict[str, Any]:
        """All values as they are now; later steps do not change them.

        TensorFlow copies a variable before it changes it in place while somebody holds its value, so
        in the host's memory this costs next to nothing. From a card it is fetched at once: to hold it
        there would take memory that the training needs.
        """
        read = {
            name: tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
            for name, variable in self.variables().items()
        }
        with tf.device("/device:CPU:0"):
            return {
                name: value if "CPU" in value.device else tf.identity(value) for name, value in read.items()
            }


@runtime_checkable
class Resumable(Protocol):
    """What a checkpoint asks of an engine."""

    devices: tuple[str, ...]
    optimizer: Any

    @property
    def num_replicas(self) -> int:
        """On all machines."""

    def prepare(self, batch: Arguments) -> Any:
        """Make every variable that a step on such a batch needs."""

    def state(self) -> SavedState:
        """What to keep; called between steps, and only when everything is prepared."""

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step: the originals of `common` have their saved values.

        Args:
            own: by the names of `SavedState.own`, the saved values of each replica; fewer or more of them
                than there are replicas now if the number of devices is another, none if the mode is.
        """

    def next_join(self, step: int) -> int:
        """The first step from `step` on after which the replicas agree, so that it can be saved."""


def state_of(homes: Homes, updates: tf.Variable, lost: Sequence[str] = ()) -> SavedState:
    """The state of an engine whose variables all live in its homes.

    Args:
        homes: where they live.
        updates: the engine's count of updates.
        lost: what cannot be kept, in words.
    """
    mark_slots(homes.parameters, homes.slots)
    groups = {
        "parameters": homes.parameters,
        "optimizer": homes.slots,
        "states": [state.original for state in homes.states.values() if not state.trained],
        "constants": homes.constants(),
    }
    common = {
        f"{group}/{name}": Item(variable, homes.current(variable))
        for group, variables in groups.items()
        for name, variable in named(variables).items()
    }
    common["updates"] = Item(updates, updates)
    # Averaged states are the same on every replica after every step.
    states = {name: state for name, state in _states(homes).items() if not state.averaged}
    return SavedState(
        common,
        {name: state.copies for name, state in states.items()},
        frozenset(name for name, state in states.items() if state.random),
        tuple(lost),
    )


def resume(homes: Homes, own: Mapping[str, Sequence[Any]]) -> None:
    """Give all copies the values of the originals, and replicas what is their own.

    A replica that the saved step did not have draws a stream of random numbers of its own.
    """
    homes.enter()
    for name, state in _states(homes).items():
        saved = own.get(name, ())
        if state.averaged or not (state.random or len(saved) == homes.total):
            continue
        for i, copy in enumerate(state.copies, homes.first):
            copy.assign(saved[i] if i < len(saved) else another_stream(state.original, i))
    homes.late.keep()


def bases(homes: Homes) -> dict[str, tuple[tf.Variable, ...]]:
    """By name, for each replica, the value to which it adds its part of a sum (see `aggregation`).

    For engines whose replicas have different values of it when they are saved.
    """
    sums = {name: state for name, state in _states(homes).items() if state.base is not None}
    return {f"bases/{name}": (state.base,) * len(state.copies) for name, state in sums.items()}


def _states(homes: Homes) -> dict[str, Any]:
    states = list(homes.states.values())
    return dict(zip(named([state.original for state in states]), states, strict=True))


def named(variables: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
    """Variables by the names of their tensors in a checkpoint; of a part, its slice stands behind a bar.

    The second of a name gets `~1` behind it, and so on.

    >>> list(named([tf.Variable(0, name="w"), tf.Variable(0, name="b"), tf.Variable(0, name="w")]))
    ['w', 'b', 'w~1']
    """
    by_name: dict[str, tf.Variable] = {}
    counts: dict[str, int] = {}
    wholes: dict[Any, str] = {}
    for variable in variables:
        cut, name = slice_of(variable), variable.name.partition(":")[0]
        name = PART.sub("", name) if cut else name
        whole = (name, cut.logical if cut else variable.ref())
        if whole not in wholes:
            number = counts[name] = counts.get(name, -1) + 1
            wholes[whole] = f"{name}~{number}" if number else name
        by_name[wholes[whole] + (f"{BAR}{cut.of(variable.shape)}" if cut else "")] = variable
    return by_name
