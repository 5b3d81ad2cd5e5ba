"""Where the variables of a pipeline live: with the first stage that uses them, once per row of devices.

A part of a layer that is split by width lives where the layer put it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import Capture
from colonnade.run.variables.homes import Bindings, Homes, copy_of
from colonnade.run.variables.parts import home_of


class StageHomes(Homes):
    """Copies of variables on the devices of their stages; the user's own take the values after steps.

    Args:
        rows: the places of each pipeline; the devices of its stages come first.
        place_of: by the ref of a variable, its place.
        parameters: what is trained.
        slots: what the optimizer keeps.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        place_of: Mapping[Any, int],
        parameters: Sequence[tf.Variable],
        slots: Sequence[tf.Variable],
    ) -> None:
        super().__init__("partitioned", [row[0] for row in rows], parameters, slots)
        self._rows, self._place_of = rows, place_of
        self._handles: dict[tuple[int, int, Any], Any] = {}
        for variable in [*parameters, *slots]:
            for row in range(len(rows)):
                self._copy(row, variable)

    def _device(self, row: int, variable: tf.Variable) -> str:
        return self._rows[row][self._place_of.get(variable.ref(), 0)]

    def _copy(self, row: int, variable: tf.Variable) -> tf.Variable:
        copies = self._copies[row]
        if home_of(variable) is not None:
            return variable  # it is where it belongs
        if variable.ref() not in copies:
            copies[variable.ref()] = copy_of(variable, self._device(row, variable))
        return copies[variable.ref()]

    def at_stage(self, row: int, stage: int, captures: Iterable[Capture]) -> Bindings:
        """The handles with which the legs of a stage are called.

        Each stage has a handle of its own, also for a variable that is tied to another: TensorFlow runs
        calls with the same handle one after the other.
        """
        bindings: Bindings = {}
        for capture in captures:
            if capture.variable is None:
                continue
            key = (row, stage, capture.variable.ref())
            if key not in self._handles:
                written = self._written(row, capture)
                source = self._copy(row, capture.variable) if written is None else written
                with tf.init_scope(), tf.device(source.device):
                    self._handles[key] = tf.identity(source.handle)
            bindings[capture.variable.ref()] = self._handles[key]
        return bindings

    def bindings(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        return self.at_stage(replica, -1, captures)

    def _state_devices(self, variable: tf.Variable) -> Sequence[str]:
        return [self._device(row, variable) for row in range(len(self._rows))]

    def _read_by_first(self) -> Iterable[Any]:
        return self._copies[0]

    def leave(self) -> None:
        for variable in [*self.parameters, *self.slots]:
            if variable.ref() in self._copies[0]:
                variable.assign(self._copies[0][variable.ref()])
