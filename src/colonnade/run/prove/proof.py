"""The proof on the first batch: what several devices compute for it, in slices, against one device.

Before the first update, loss, gradients and metrics of a batch are computed twice, from the traces that the
training uses: as a whole, and slice by slice and added up as a step does it. Every state is put back.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import slice_specs, slices
from colonnade.run.move.reduce import star
from colonnade.run.parallel.gap import dense
from colonnade.run.parallel.tolerance import Values, unlike
from colonnade.run.prove.fixed_draws import muted, with_numbers_by_place
from colonnade.run.prove.look import FIRST, STATE, Look
from colonnade.run.prove.second_looks import at_rest
from colonnade.run.step.gradient_rows import DENSE
from colonnade.run.step.gradient_sums import Recipe, cut, joined, recipes
from colonnade.run.step.objective import Objective, Share
from colonnade.run.trace.keras_owner import keras_variable
from colonnade.run.trace_cut.sync_cut import call_with_sums
from colonnade.run.variables.aggregation import is_random_state, rule_of
from colonnade.run.variables.homes import copy_of
from colonnade.run.variables.saved_state import named

# What a value is called that shows which rows of a table come twice.
ROWS = "squared rows of"
# Of what the slices returned beside losses, more to compare: called with the shares, the traces that gave
# them, that of the whole, and their batch.
More = Callable[[Sequence[Share], Sequence[Objective], Objective, Arguments], Values]


def nothing_more(
    shares: Sequence[Share], traces: Sequence[Objective], whole: Objective, batch: Arguments
) -> Values:
    return {}


@dataclass(frozen=True)
class InSlices:
    """A batch computed as a whole and in slices.

    Args:
        whole: the trace of the whole batch.
        parts: a trace for each slice.
        counts: the sizes of the slices.
        batch: the first one.
        device: where to compute.
        more: what to compare beside loss, metrics and gradients.
        where: what the batch is, for messages.
        scale: of the loss.
    """

    whole: Objective
    parts: Sequence[Objective]
    counts: Sequence[int]
    batch: Arguments
    device: str
    more: More = nothing_more
    where: str = FIRST
    scale: float = 1.0

    @classmethod
    def traced(
        cls,
        trace: Callable[[Arguments], Objective],
        counts: Sequence[int],
        batch: Arguments,
        device: str,
        more: More = nothing_more,
    ) -> "InSlices":
        """With traces of its own, that no training uses."""
        (whole,) = slice_specs(batch, [sum(counts)])
        by_size = dict(zip(counts, slice_specs(batch, counts), strict=True))  # one trace for all of a size
        made = {count: trace(part) for count, part in by_size.items()}
        return cls(trace(whole), [made[count] for count in counts], counts, batch, device, more)

    def anew(self, batch: Arguments, where: str) -> "InSlices":
        """The same for another batch, and for variables as they are by then."""
        return replace(self, batch=batch, where=where)

    def scaled_by(self, scale: float) -> "InSlices":
        """The same with so many times the loss."""
        return replace(self, scale=scale)

    @property
    def resting(self) -> list[tf.Variable]:
        """Weights that are 0, so that nothing is seen of what they multiply."""
        return at_rest(self.whole, self.look.ends, self.whole.parameters)

    def with_fixed_draws(self, salt: int = 0) -> "InSlices":
        """The same, with no random numbers drawn (see `fixed_draws`)."""
        whole, parts = with_numbers_by_place(self.whole, self.parts, self.counts, salt)
        return replace(self, whole=whole, parts=parts)

    def muted(self) -> "InSlices":
        """The same, with nothing printed."""
        made = {id(traced): muted(traced) for traced in (self.whole, *self.parts)}
        return replace(self, whole=made[id(self.whole)], parts=[made[id(part)] for part in self.parts])

    @cached_property
    def look(self) -> Look:
        share = self.whole.structure
        ends = tf.nest.flatten([share.loss, [g for g in share.gradients if g is not None]], True)
        written = {v.ref(): v for traced in self._every for v in traced.written}
        return Look(
            self.batch,
            self.whole,
            tuple(ends),
            lambda batch: self._run([self.whole], [sum(self.counts)], batch),
            lambda batch: self._run(self.parts, self.counts, batch),
            tuple(written.values()),
            self._scaled,
        )

    def _run(self, traces: Sequence[Objective], counts: Sequence[int], batch: Arguments) -> Values:
        shares = self._shares(traces, counts, batch)
        return self._totals(shares, self.more(shares, traces, self.whole, batch)) | self._states(counts)

    def _scaled(self, scale: float) -> Values:
        """Loss and gradients of the whole, computed as so many times the loss, which is taken back again."""
        shares = self._shares([self.whole], [sum(self.counts)], self.batch, scale)
        if shares[0].weight is not None:  # what is divided by weights is not scaled
            return {}
        alone = [replace(share, metrics={}) for share in shares]
        totals = self._totals(alone, {}).items()
        return {name: value / scale ** (2 if name.startswith(ROWS) else 1) for name, value in totals}

    @property
    def summed(self) -> bool:
        """Whether the loss of the whole is the sum of the slices' losses, and not their mean."""
        losses, loss = self._losses_of_slices, float(self.look.one["loss"]) / self.scale
        if losses is None:
            return False
        return bool(abs(sum(losses) - loss) <= np.sqrt(self.look.step) * max(abs(loss), *map(abs, losses)))

    @cached_property
    def _losses_of_slices(self) -> list[float] | None:
        """Those of means, which a step weighs by size; None where weights are said."""
        with self.look.kept():
            shares, total = self._shares(self.parts, self.counts, self.batch), sum(self.counts)
        if shares[0].weight is not None:
            return None
        return [
            float(s.loss) / self.scale * total / count for s, count in zip(shares, self.counts, strict=True)
        ]

    @property
    def changes_states(self) -> bool:
        """Whether the function changes variables that are not those of random generators."""
        written = [c for c in self.whole.captures if c.variable is not None and c.written]
        return any(not is_random_state(capture) for capture in written)

    @property
    def at_zero(self) -> list[tf.Variable]:
        """What is read and not trained, and is 0 altogether."""
        trained = {parameter.ref() for parameter in self.whole.parameters}
        read = [v for v in self.whole.variables if v.dtype.is_floating and v.ref() not in trained]
        return [variable for variable in read if not np.any(variable.numpy())]

    def outputs(
        self, values: Mapping[Any, Any] | None = None, batch: Arguments | None = None
    ) -> tuple[Any, list[Any]]:
        """What else the function returned: for the whole, and for each slice.

        Args:
            values: for some variables, by their refs; they are put back.
            batch: another one.
        """
        shares = []
        for traces, counts in (([self.whole], [sum(self.counts)]), (self.parts, self.counts)):
            with self.look.kept([ref.deref() for ref in values or {}]):
                for ref, value in (values or {}).items():
                    ref.deref().assign(value)
                shares.append(self._shares(traces, counts, self.batch if batch is None else batch))
        (whole,), parts = shares
        return whole.outputs, [share.outputs for share in parts]

    def outputs_of_slices(self) -> list[Any]:
        with self.look.kept():
            return [share.outputs for share in self._shares(self.parts, self.counts, self.batch)]

    def _shares(
        self, traces: Sequence[Objective], counts: Sequence[int], batch: Arguments, scale: float = 1.0
    ) -> list[Share]:
        factor = scale * self.scale / sum(counts)
        parts = [part.components() for part in slices(batch, counts, factor=factor)]
        devices: list[str] = [self.device] * len(counts)
        bound = [self._own_states(i, traced) for i, traced in enumerate(traces)]
        with tf.device(self.device):
            results = call_with_sums(traces, devices, parts, bound, star(len(counts)))
        return [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]

    def _own_states(self, replica: int, traced: Objective) -> Mapping[Any, Any]:
        """Copies of what a replica changes: it begins with the states of one device, not with another's."""
        written = [c for c in traced.captures if c.variable is not None and c.written]
        for variable in [c.variable for c in written if not is_random_state(c)]:
            copies = self._copies.setdefault(variable.ref(), {})
            if replica not in copies:
                copies[replica] = copy_of(variable, self.device)
            copies[replica].assign(variable)
        return {ref: copies[replica].handle for ref, copies in self._copies.items() if replica in copies}

    @cached_property
    def _copies(self) -> dict[Any, dict[int, tf.Variable]]:
        """By the ref of a variable, and by replica."""
        return {}

    def _states(self, counts: Sequence[int]) -> Values:
        """What replicas have made of variables, as one value of each, by name."""
        shares, values = [count / sum(counts) for count in counts], {}
        for name, variable in named(ref.deref() for ref in self._copies).items():
            rule, copies = rule_of(variable), self._copies[variable.ref()]
            if _said_first(variable) or any(i not in copies for i in range(len(counts))):
                continue
            if rule == "first" or not variable.dtype.is_floating:  # counts, of which one replica's is kept
                each = [copies[i].numpy() for i in range(len(counts) if rule == "sum" else 1)]
                before = variable.numpy() if rule == "sum" else 0
                values[f"{STATE} {name}"] = np.asarray(sum(each) - (len(each) - 1) * before)
                continue
            before = variable.numpy() if rule == "sum" else 0.0
            weights = [1.0] * len(counts) if rule == "sum" else shares
            each = [w * (copies[i].numpy() - before) for i, w in enumerate(weights)]
            values[f"{STATE} {name}"] = np.asarray(before + np.sum(each, axis=0))
        return values

    def _totals(self, shares: Sequence[Share], more: Values) -> Values:
        weight = None if shares[0].weight is None else sum(float(s.weight) for s in shares) or 1.0
        values = {"loss": _total([s.loss for s in shares], weight)}
        for name in shares[0].metrics:
            values[f"metric {name}"] = _total([s.metrics[name] for s in shares], weight)
        values |= more
        for i, parameter in enumerate(self.whole.parameters):
            there = [share for share in shares if share.gradients[i] is not None]
            if not there:
                continue
            name, recipe = _name(parameter), self._recipes[i]
            if self._in_rows(i) and recipe != DENSE:
                gradient = self._joined(i, there, recipe)
                values[unlike(values, f"gradient of {name}")] = _total([self._dense(i, gradient)], weight)
                if not self._drawn(i):
                    # Most optimizers square row by row: it matters which rows come twice.
                    squares = _total([self._dense(i, gradient, np.square)], weight and weight**2)
                    values[unlike(values, f"{ROWS} {name}")] = squares
            else:
                each = [self._dense(i, share.gradients[i]) for share in there]
                values[unlike(values, f"gradient of {name}")] = _total(each, weight)
        return values

    def _joined(self, i: int, shares: Sequence[Share], recipe: Recipe) -> Any:
        """The gradient that the optimizer is given, as a step makes it."""
        if len(shares) == 1:
            return shares[0].gradients[i]
        cuts = [cut(share.gradients[i], share.sizes[i], recipe) for share in shares]
        totals = [
            tf.IndexedSlices(
                tf.concat([part.values for part in column], axis=0),
                tf.concat([part.indices for part in column], axis=0),
                column[0].dense_shape,
            )
            for column in zip(*cuts, strict=True)
        ]
        return joined(totals, recipe, len(shares))[0]

    @cached_property
    def _recipes(self) -> list[Recipe]:
        """What cannot be joined is refused elsewhere."""
        return recipes(self.parts, self.counts, lambda: self.whole)[0]

    @property
    def _every(self) -> tuple[Objective, ...]:
        return (self.whole, *self.parts)

    def _drawn(self, i: int) -> bool:
        """Whether the rows that are looked up come of random numbers, and so are others on one device."""
        forms = [traced.forms[i] for traced in self._every]
        return any(isinstance(form, tuple) and any(piece.drawn for piece in form) for form in forms)

    def _in_rows(self, i: int) -> bool:
        """Whether all gradients of a variable are sparse."""
        return all(isinstance(t.structure.gradients[i], tf.IndexedSlices) for t in self._every)

    def _dense(self, i: int, gradient: Any, of_rows: Callable[[Any], Any] = np.asarray) -> Any:
        """Of a table that is looked up in rows, the rows that are there; of all others, everything."""
        if not self._in_rows(i) or not isinstance(gradient, tf.IndexedSlices):
            return dense(gradient)
        indices, values = gradient.indices.numpy(), of_rows(dense(gradient.values))
        known = self._looked_up.setdefault(i, np.unique(indices))
        places = np.searchsorted(known, indices)
        if (places >= len(known)).any() or (known[np.minimum(places, len(known) - 1)] != indices).any():
            return np.full((len(known), *values.shape[1:]), np.inf)  # a row that one device does not touch
        rows = np.zeros((len(known), *values.shape[1:]), values.dtype)
        np.add.at(rows, places, values)
        return rows

    @cached_property
    def _looked_up(self) -> dict[int, np.ndarray]:
        return {}


def _said_first(variable: tf.Variable) -> bool:
    """Whether its user wants the value of the first replica; nor is there another of what has no sum."""
    numbers = variable.dtype.is_floating or variable.dtype.is_integer
    return variable.aggregation.name == "ONLY_FIRST_REPLICA" or not numbers


def _total(parts: Sequence[Any], weight: float | None) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # what is not finite is told by `Look.untold`
        total = np.sum([dense(p) if isinstance(p, tf.Tensor) else p for p in parts], axis=0)
    return np.asarray(total if weight is None else total / weight)


def _name(variable: tf.Variable) -> str:
    known = keras_variable(variable)
    return variable.name if known is None else str(known.path)
