"""What a checkpoint keeps of a Keras model in training: the variables of its step, its metrics, the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import keras

from colonnade.run.batch.split import Arguments
from colonnade.run.machines.peers import Peers
from colonnade.run.model.training_step import all_metrics
from colonnade.run.variables.saved_state import METRICS, Item, SavedState, named


class KeptParts(Protocol):
    """A step of a Keras model, as far as a checkpoint has to do with it."""

    devices: tuple[str, ...]

    def prepare(self, data: Any) -> Any:
        """Make every variable that a step on such a batch needs."""

    def state(self) -> SavedState:
        """The variables of the step."""

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step."""

    def next_join(self, step: int) -> int:
        """The first step from `step` on that can be saved."""


class StepState:
    """A step and its model, as a checkpoint sees them (see `saved_state.Resumable`)."""

    def __init__(self, model: keras.Model, step: KeptParts, peers: Peers) -> None:
        self._model, self._step, self._peers = model, step, peers
        self.devices, self.optimizer = step.devices, model.optimizer

    @property
    def num_replicas(self) -> int:
        """On all machines."""
        return self._peers.total

    def prepare(self, batch: Arguments) -> None:
        (data,), _ = batch.unpack(batch.components())
        self._step.prepare(data)

    def state(self) -> SavedState:
        state = self._step.state()
        metrics = [v for metric in all_metrics(self._model) for v in metric.variables]
        known = {item.original.ref() for item in state.common.values()}
        common = dict(state.common)
        for group, variables in ((METRICS, metrics), ("model/", self._model.variables)):
            new = {v.value.ref(): v.value for v in variables if v.value.ref() not in known}
            known |= new.keys()
            common |= {f"{group}{name}": Item(v, v) for name, v in named(new.values()).items()}
        return replace(state, common=common)

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        self._step.resume(own)

    def next_join(self, step: int) -> int:
        return self._step.next_join(step)
