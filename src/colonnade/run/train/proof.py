"""The proof on the first batch: what several devices compute for it, in slices, against one device.

Before the first update, loss, gradients and metrics of a batch are computed twice, from the traces that the
training uses: as a whole, and slice by slice and added up as a step does it. Every state is put back. How
much may differ is found out on one device (see `parallel.tolerance`), where the two are not as good as equal.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import slice_specs, slices
from colonnade.run.move.reduce import star
from colonnade.run.parallel.gap import dense, gap, largest, nudged
from colonnade.run.parallel.rounding import coarsest
from colonnade.run.parallel.tolerance import MOVES, Values, kind, margin, noise, scales, unlike
from colonnade.run.parallel.verify_report import Comparison
from colonnade.run.step.objective import Objective, Share
from colonnade.run.trace.captures import ancestors, nodes
from colonnade.run.trace.keras_owner import keras_variable
from colonnade.run.trace.sync_cut import call_with_sums
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.aggregation import is_random_state

# What a person or a program outside would see once more if a function is run to be looked at.
SEEN_OUTSIDE = (
    "PrintV2",
    "PyFunc",
    "EagerPyFunc",
    "PyFuncStateless",
    "WriteSummary",
    "WriteScalarSummary",
    "WriteRawProtoSummary",
)
# Runs in which numbers that are drawn must differ once: a few of them may be equal by chance.
DRAWS = 3

# Of what the slices returned beside losses, more to compare: called with the shares and their batch.
More = Callable[[Sequence[Share], Arguments], Values]


def nothing_more(shares: Sequence[Share], batch: Arguments) -> Values:
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
    """

    whole: Objective
    parts: Sequence[Objective]
    counts: Sequence[int]
    batch: Arguments
    device: str
    more: More = nothing_more

    @classmethod
    def of(
        cls, trace: Callable[[Arguments], Objective], counts: Sequence[int], *rest: Any, **more: Any
    ) -> "InSlices":
        """With traces of its own, that no training uses."""
        batch: Arguments = rest[0]
        (whole,) = slice_specs(batch, [sum(counts)])
        made = {count: trace(part) for count, part in zip(counts, slice_specs(batch, counts), strict=True)}
        return cls(trace(whole), [made[count] for count in counts], counts, *rest, **more)

    @property
    def silent(self) -> bool:
        """Whether running it once more is seen by nobody."""
        return is_silent(self.whole)

    @cached_property
    def one(self) -> Values:
        """What one device computes."""
        return self._values(self.whole_shares, self.batch)

    @cached_property
    def whole_shares(self) -> list[Share]:
        """What it computes, as a slice that is all of the batch."""
        with self._kept():
            return self._shares([self.whole], [sum(self.counts)], self.batch)

    @cached_property
    def several(self) -> Values:
        """What several compute, added up."""
        return self._values(self.shares, self.batch)

    @cached_property
    def shares(self) -> list[Share]:
        """What each slice adds."""
        with self._kept():
            return self._shares(self.parts, self.counts, self.batch)

    @cached_property
    def rows(self) -> tuple[Comparison, ...]:
        """Value by value; where one differs, the cause is `slices`: it is for others to find a better one."""
        size, step = sum(self.counts), self._step
        gaps = {leaf: gap(value, self.several.get(leaf)) for leaf, value in self.one.items()}
        rounding = {leaf: step * largest(value) for leaf, value in self.one.items()}
        if any(gaps[leaf] > margin(step) * rounding[leaf] for leaf in gaps):
            rounding = self._noise()
        allowed = {leaf: margin(step) * rounding[leaf] for leaf in gaps}
        causes = {leaf: "slices" if gaps[leaf] > allowed[leaf] else None for leaf in gaps}
        return tuple(Comparison(leaf, size, gaps[leaf], allowed[leaf], causes[leaf]) for leaf in gaps)

    @property
    def unequal(self) -> list[Comparison]:
        """Those that differ."""
        return [row for row in self.rows if not row.equal]

    @cached_property
    def random(self) -> bool:
        """Whether two runs on one device differ: it draws numbers. Streams go on meanwhile."""
        allowed = {row.leaf: row.tolerance for row in self.rows}
        with self._kept():
            for _ in range(DRAWS):
                again = self._values(self._shares([self.whole], [sum(self.counts)], self.batch), self.batch)
                if any(gap(value, again.get(leaf)) > allowed[leaf] for leaf, value in self.one.items()):
                    return True
        return False

    @property
    def summed(self) -> bool:
        """Whether the loss of the whole is the sum of the slices' losses, and not their mean."""
        total = sum(self.counts)
        own = [float(s.loss) * total / n for s, n in zip(self.shares, self.counts, strict=True)]
        if self.shares[0].weight is not None:
            return False
        loss = float(self.one["loss"])
        return bool(abs(sum(own) - loss) <= np.sqrt(self._step) * max(abs(loss), *map(abs, own)))

    @property
    def changes_states(self) -> bool:
        """Whether the function changes variables that are not those of random generators."""
        written = [c for c in self.whole.captures if c.variable is not None and c.written]
        return any(not is_random_state(capture) for capture in written)

    @cached_property
    def _step(self) -> float:
        """The coarsest step of the floats on the way to loss and gradients."""
        share = self.whole.structure
        ends = tf.nest.flatten([share.loss, [g for g in share.gradients if g is not None]], True)
        return coarsest(ancestors(*(end.op for end in ends)), but=("Placeholder", "Const"))

    def _noise(self) -> dict[str, float]:
        """What rounding does on one device."""
        rows, kinds = sum(self.counts), scales(self.one)
        moved, orders = self._moved(), [self._permuted()]
        summed = {leaf for leaf in self.one if kind(leaf) != "prediction"}
        return {
            leaf: noise(
                leaf, value, kinds[kind(leaf)], self._step, moved, orders if leaf in summed else (), rows
            )
            for leaf, value in self.one.items()
        }

    def _moved(self) -> list[Values]:
        """With the last digits of all floats moved, those of inputs and of variables."""
        rng, step = np.random.default_rng(0), self._step
        floats = [v for v in self.whole.variables if v.dtype.is_floating]
        found = []
        with self._kept(*floats):
            before = [(variable, variable.numpy()) for variable in floats]
            for _ in range(MOVES):
                values = [
                    nudged(leaf.value, step, rng) if _is_float(leaf.value) else leaf.value
                    for leaf in self.batch.leaves
                ]
                for variable, value in before:
                    variable.assign(nudged(value, step, rng))
                batch = self.batch.with_values(values)
                found.append(self._values(self._shares([self.whole], [sum(self.counts)], batch), batch))
        return found

    def _permuted(self) -> Values:
        """With the examples in another order."""
        rows = sum(self.counts)
        order = np.random.default_rng(0).permutation(rows)
        batch = self.batch.rows(order)
        with self._kept():
            return self._values(self._shares([self.whole], [rows], batch), batch)

    def _shares(self, traces: Sequence[Objective], counts: Sequence[int], batch: Arguments) -> list[Share]:
        parts = [part.components() for part in slices(batch, counts)]
        devices: list[str] = [self.device] * len(counts)
        bound: list[Mapping[Any, Any]] = [{}] * len(counts)
        with tf.device(self.device):
            results = call_with_sums(traces, devices, parts, bound, star(len(counts)))
        return [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]

    def _values(self, shares: Sequence[Share], batch: Arguments) -> Values:
        """Loss, metrics and gradients of the whole batch, by name."""
        weight = None if shares[0].weight is None else sum(float(s.weight) for s in shares) or 1.0
        values = {"loss": _total([s.loss for s in shares], weight)}
        for name in shares[0].metrics:
            values[f"metric {name}"] = _total([s.metrics[name] for s in shares], weight)
        values |= self.more(shares, batch)
        for i, parameter in enumerate(self.whole.parameters):
            there = [s.gradients[i] for s in shares if s.gradients[i] is not None]
            if there:
                name = unlike(values, f"gradient of {_name(parameter)}")
                values[name] = _total([self._dense(i, g) for g in there], weight)
        return values

    def _dense(self, i: int, gradient: Any) -> Any:
        """Of a table that is looked up in rows, the rows that are there; of all others, everything."""
        every = [traced.structure.gradients[i] for traced in (self.whole, *self.parts)]
        if not all(isinstance(g, tf.IndexedSlices) for g in every):
            return dense(gradient)
        indices, values = gradient.indices.numpy(), dense(gradient.values)
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

    @contextmanager
    def _kept(self, *more: tf.Variable) -> Any:
        """Puts back what the function writes, and some variables more."""
        written = [v for traced in (self.whole, *self.parts) for v in traced.written]
        before = {id(v): (v, tf.identity(v)) for v in (*written, *more)}
        try:
            yield
        finally:
            for variable, value in before.values():
                variable.assign(value)


def is_silent(traced: Traced) -> bool:
    """Whether running a trace once more is seen by nobody."""
    graph = traced.concrete.graph.as_graph_def()
    return not any(node.op in SEEN_OUTSIDE for node in nodes(graph))


def _total(parts: Sequence[Any], weight: float | None) -> np.ndarray:
    total = np.sum([dense(p) if isinstance(p, tf.Tensor) else p for p in parts], axis=0)
    return np.asarray(total if weight is None else total / weight)


def _name(variable: tf.Variable) -> str:
    known = keras_variable(variable)
    return variable.name if known is None else str(known.path)


def _is_float(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating
