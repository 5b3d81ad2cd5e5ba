"""The proof on the first batch for a step of a model's own: gradients that it applies, logs, states."""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments, flatten, is_tensor
from colonnade.run.parallel.gap import dense
from colonnade.run.parallel.tolerance import Values, unlike
from colonnade.run.prove.fixed_draws import muted, with_numbers_by_place
from colonnade.run.prove.look import FIRST, STATE, Look
from colonnade.run.prove.second_looks import at_rest
from colonnade.run.trace.keras_owner import keras_variable
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.aggregation import is_random_state
from colonnade.run.variables.saved_state import named
from colonnade.run.variables.slice_values import counters


class Replicated(Protocol):
    """A step of several replicas (see `own_step`)."""

    devices: tuple[str, ...]
    names: list[str]
    copies: Any

    @property
    def loss_scales(self) -> list[tf.Variable]: ...

    def counts(self, batch: Arguments) -> tuple[int, ...]: ...

    def traces(self, batch: Arguments) -> list[Traced]: ...

    def whole(self, batch: Arguments) -> Traced: ...

    def called(self, traces: Sequence[Traced], batch: Arguments) -> list[list[Any]]: ...


class StepInSlices:
    """One batch through the step of one device, and of several; every variable is put back."""

    def __init__(self, step: Replicated, batch: Arguments) -> None:
        self._step, self.batch, self.counts, self.where = step, batch, step.counts(batch), FIRST
        self.whole, self._parts = step.whole(batch), step.traces(batch)
        self._scale = 1.0

    def anew(self, batch: Arguments, where: str) -> "StepInSlices":
        """The same for another batch, and for variables as they are by then."""
        other = self._of(self.whole, self._parts)
        other.batch, other.where = batch, where
        return other

    def scaled_by(self, scale: float) -> "StepInSlices":
        """The same with losses that optimizers scale by so many times as much, as far as they do."""
        other = self._of(self.whole, self._parts)
        other._scale = scale
        return other

    @property
    def resting(self) -> list[tf.Variable]:
        """Weights that are 0, so that nothing is seen of what they multiply in a loss."""
        given = tf.nest.flatten(self.whole.structure[1], expand_composites=True)
        paths = {v.ref(): keras_variable(v) for v in self.whole.variables}
        names = {ref: ref.deref().name if known is None else known.path for ref, known in paths.items()}
        trained = [ref.deref() for ref, name in names.items() if name in self._step.names]
        return at_rest(self.whole, given, trained)

    def with_fixed_draws(self, salt: int = 0) -> "StepInSlices":
        """The same step, which draws no random numbers (see `fixed_draws`)."""
        return self._of(*with_numbers_by_place(self.whole, self._parts, self.counts, salt))

    def muted(self) -> "StepInSlices":
        """The same step, which prints nothing."""
        made = {id(traced): muted(traced) for traced in (self.whole, *self._parts)}
        return self._of(made[id(self.whole)], [made[id(part)] for part in self._parts])

    def _of(self, whole: Traced, parts: list[Traced]) -> "StepInSlices":
        other = copy(self)
        for made_of_traces in ("look", "_counters"):
            vars(other).pop(made_of_traces, None)
        other.whole, other._parts = whole, parts
        return other

    @cached_property
    def look(self) -> Look:
        copies = self._step.copies.every()
        written = {v.ref(): v for traced in (self.whole, *self._parts) for v in traced.written}
        return Look(
            self.batch,
            self.whole,
            tuple(self.whole.outputs),
            self._alone,
            self._together,
            (*written.values(), *copies),
        )

    @property
    def changes_states(self) -> bool:
        """Whether it changes variables by what is of a slice, other than random generators."""
        return any(not variable.dtype.is_integer for variable in self._step.copies.local.values())

    @property
    def summed(self) -> bool:
        """Whether gradients of one device are about as many times larger as there are slices: of a sum."""
        pairs = [(v, self.look.several.get(k)) for k, v in self.look.one.items() if k.startswith("gradient")]
        norms = [(np.linalg.norm(a), np.linalg.norm(b)) for a, b in pairs if b is not None]
        ratios = [a / b for a, b in norms if b > 0]
        return bool(ratios and abs(float(np.median(ratios)) / len(self.counts) - 1) < 0.15)

    def given(self, place: int) -> tuple[Any, list[Any]]:
        """What else the traces give, at such a place: that of the whole batch, and of each slice."""
        with self.look.kept():
            whole = self.whole.pack(self.whole.on(self._step.devices[0], self.batch.components(), {}))
        with self.look.kept():
            self._step.copies.begin()
            each = zip(self._parts, self._step.called(self._parts, self.batch), strict=True)
            parts = [traced.pack(leaves)[place] for traced, leaves in each]
        return whole[place], parts

    def _rescale(self) -> None:
        """Whoever looks puts back what is written."""
        for variable in self._step.loss_scales:
            variable.assign(variable * self._scale)

    def _alone(self, batch: Arguments) -> Values:
        self._rescale()
        leaves = self.whole.on(self._step.devices[0], batch.components(), {})
        return self._values([self.whole.pack(leaves)], [sum(self.counts)]) | self._kept()

    def _together(self, batch: Arguments) -> Values:
        copies, total = self._step.copies, sum(self.counts)
        self._rescale()
        copies.begin()
        before = copies.before()
        results = self._step.called(self._parts, batch)
        copies.settle([count / total for count in self.counts], before)
        packed = [traced.pack(leaves) for traced, leaves in zip(self._parts, results, strict=True)]
        return self._values(packed, self.counts) | self._kept()

    def _kept(self) -> Values:
        """What the step has made of counts, and of what is given something of a slice, by name."""
        settled = [v for v in self._step.copies.settled if v.dtype.is_floating]
        streams = {
            c.variable.ref() for c in self.whole.captures if c.variable is not None and is_random_state(c)
        }
        whole_numbers = [v for v in self.whole.written if v.dtype.is_integer and v.ref() not in streams]
        kept = {v.ref(): v for v in (*settled, *whole_numbers, *self._counters)}
        return {f"{STATE} {name}": v.numpy() for name, v in named(kept.values()).items()}

    @cached_property
    def _counters(self) -> list[tf.Variable]:
        return [v for v in counters(self.whole) if v.dtype.is_floating]

    def _values(self, results: Sequence[Any], counts: Sequence[int]) -> Values:
        """Logs, and what optimizers were given, by name."""
        values: Values = {}
        for leaves in zip(*(flatten(logs) for logs, *_ in results), strict=True):
            path, first = leaves[0]
            if is_tensor(first) or isinstance(first, int | float):
                numbers = [dense(leaf) if is_tensor(leaf) else leaf for _, leaf in leaves]
                values[f"log{path}"] = np.average(numbers, axis=0, weights=counts)
        for name, gradient in zip(self._step.names, results[0][1], strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                # An optimizer sees how often a row comes.
                values[unlike(values, f"rows of {name}")] = np.sort(gradient.indices.numpy())
            values[unlike(values, f"gradient of {name}")] = dense(gradient)
        return values
