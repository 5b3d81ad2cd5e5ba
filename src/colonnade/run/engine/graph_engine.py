"""To add a mode of training, begin here: what all modes have in common whose step is a graph.

A way of training is a class on top of this one. It says at most six things:

    counts    how many rows of a batch each replica gets; the same for all, if it does not say
    refused   what it cannot train
    estimate  the memory that a replica's slice takes
    house     where the variables live
    step      the graph of a step
    links     the bytes that a step moves from device to device

The rest is here: traces, the guard against NaN, the loop, what a checkpoint keeps, what users look at.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.clusters.whereabouts import Progress
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.engine.gradients import slice_specs
from colonnade.run.engine.graph_loop import Loop
from colonnade.run.engine.guard import Guard
from colonnade.run.engine.protocols import Links, Outcome, Settings, Then
from colonnade.run.engine.traces import Traces
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.memory.estimate import Memory, of_replicas, with_slices_ahead
from colonnade.run.move.slices_ahead import SlicesAhead
from colonnade.run.step.objective import Objective
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import SavedState, resume, state_of


class GraphEngine:
    """Builds the graph of a step for batches of any size."""

    def __init__(self, settings: Settings, traces: Traces | None = None) -> None:
        self.settings, self.devices = settings, settings.devices
        self.traces = traces or Traces(settings)
        self.guard = Guard(settings, self.traces)
        self._housed: Homes | None = None
        self._places: dict[Hashable, SlicesAhead] = {}  # by the kind of a batch and of its slices
        # Looks at the first batch, once all is prepared for it and before anything is trained.
        self.examine: Callable[[Arguments], Any] | None = None

    def counts(self, rows: int) -> tuple[int, ...]:
        """How many rows of a batch each replica gets."""
        return sizes(rows, len(self.devices))

    def refused(self, traces: Sequence[Objective]) -> Iterable[Problem]:
        """What stands in the way of training this way, told from the traces of the slices."""
        return ()

    def estimate(self, largest: Objective, part: Arguments, num_active: int) -> Memory:
        """The memory that each device needs, told from the largest slice and its trace."""
        mode, by = self.settings.mode, self.settings.dealt
        memory = of_replicas(largest, self.optimizer, part, self.devices, mode, num_active, by)
        return memory if self.settings.peers.several else with_slices_ahead(memory, part, num_active)

    def house(self) -> Homes:
        """Find a home for parameters and slots, which are known by now."""
        return Homes(self.settings.mode, self.devices, self.parameters, self.traces.slots)

    def step(self, batch: Arguments) -> Outcome:
        """The graph of one step on a batch of known size; called inside a tf.function."""
        raise NotImplementedError

    def links(self) -> Links:
        """Bytes that a step moves from device to device, on average; rows of sparse gradients not counted."""
        raise NotImplementedError

    @property
    def num_replicas(self) -> int:
        """On all machines."""
        return self.settings.num_replicas

    @property
    def optimizer(self) -> Any:
        return self.traces.optimizer

    @property
    def parameters(self) -> list[tf.Variable]:
        return self.traces.parameters

    @property
    def housed(self) -> Homes:
        """Where the variables live, once everything is prepared."""
        assert self._housed is not None
        return self._housed

    def loop(self, then: Then) -> Loop:
        return Loop(self, then)

    def prepare(self, batch: Arguments) -> None:
        """Trace the loss, make the optimizer's variables, and find a home for everything.

        Must run in eager code, before a step is built: variables are made here.
        """
        self.traces.prepare(batch, self.cut(batch), self.refused, self.estimate)
        if self._housed is None:
            self._housed = self.house()
        self.bind(self._housed)
        self.examined(batch)

    def examined(self, batch: Arguments) -> None:
        """Let the first batch be looked at, once."""
        if self.examine is not None:
            examine, self.examine = self.examine, None
            examine(batch)

    def bind(self, housed: Homes) -> None:
        """Make the variables and handles that the traces need."""
        captured = [objective.captures for objective in self.traces.objectives]
        if self.traces.penalty is not None:
            captured.append(self.traces.penalty.captures)
        for captures in captured:
            for i in range(len(self.devices)):
                housed.bindings(i, captures)

    def cut(self, batch: Arguments) -> tuple[int, ...]:
        """The sizes of the slices of such a batch."""
        rows = batch.size("the batch")
        assert rows is not None
        return self.counts(rows)

    def ahead(self, batch: Arguments) -> SlicesAhead | None:
        """Places for the slices of such batches, where a copy to a device takes time. In eager code."""
        if self.settings.peers.several or not hardware.are_cards(self.devices):
            return None
        kind = batch.key(), self.cut(batch)
        if kind not in self._places:
            self._places[kind] = SlicesAhead(batch, self.cut(batch), self.devices)
        return self._places[kind]

    def inputs(self, batch: Arguments) -> Sequence[Any]:
        """What the trace of its first slice has for its plain tensors, behind the factor of a mean."""
        counts = self.cut(batch)
        first = self.traces.objective(slice_specs(batch, counts)[0], 0, len(counts))
        inputs: Sequence[Any] = first.concrete.inputs
        return inputs[1 : 1 + len(batch.components())]

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves."""
        return batch.key()

    def outcome_spec(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of a step on such a batch: how many replicas work, the dtype of the loss, those of the metrics."""
        return self.traces.outcome_spec(batch, self.cut(batch))

    def memory(self, batch: Arguments) -> Memory:
        """An estimate of what a step on such a batch takes on each device; makes no variables."""
        return self.traces.estimated(batch, self.cut(batch), self.refused, self.estimate)

    def begin(self, batch: Arguments) -> None:
        """In eager code, before steps on batches like this one."""

    def took(self, rows: int, steps: int, seconds: float) -> None:
        """So many steps, on batches of so many rows, took so long."""

    def enter(self) -> None:
        if self._housed is not None:
            self._housed.enter()

    def leave(self) -> None:
        if self._housed is not None:
            self._housed.leave()

    def lends(self) -> Homes | None:
        """Copies of the user's variables on every card, if there are some: to be read between steps."""
        own = self._housed
        lent = own is not None and own.mode == "mirrored" and hardware.are_cards(self.devices)
        return own if lent and not self.settings.peers.several else None

    def distrust(self) -> None:
        if self._housed is not None:
            self._housed.distrust()

    def calling(self, progress: Progress, pace: CallPace) -> AbstractContextManager[None]:
        return self.settings.peers.calling(progress, pace)

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `Resumable`)."""
        self.housed.late.settle()
        return state_of(self.housed, self.guard.made, self.traces.lost())

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step, whose values the user's variables have by now."""
        resume(self.housed, own)

    def next_join(self, step: int) -> int:
        """The first step from here on after which the replicas agree: every step, if nothing else is said."""
        return step

    def explained(self, error: tf.errors.OpError) -> Exception:
        return self.guard.explained(error, self.culprit)

    def culprit(self, replica: int, bad: Sequence[str]) -> str:
        """The device on which something is not finite; `bad` are the variables with such a gradient."""
        return self.devices[replica]

    def homes(self) -> dict[str, str]:
        return self._housed.where() if self._housed is not None else {}

    def replicas(self) -> list[list[tf.Variable]]:
        if self._housed is None:
            return [[] for _ in self.devices]
        return [self._housed.own(i, self.parameters) for i in range(len(self.devices))]
