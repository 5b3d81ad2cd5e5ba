"""The proof on the first batch for a step of a model's own: the gradients that it applies, and its logs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments, flatten, is_tensor
from colonnade.run.parallel.gap import dense, gap, largest, nudged
from colonnade.run.parallel.rounding import coarsest
from colonnade.run.parallel.tolerance import MOVES, Values, kind, margin, noise, scales, unlike
from colonnade.run.parallel.verify_report import Comparison
from colonnade.run.trace.captures import ancestors
from colonnade.run.trace.traced import Traced
from colonnade.run.train.proof import DRAWS, is_silent
from colonnade.run.variables.aggregation import is_random_state


class Replicated(Protocol):
    """A step of several replicas."""

    devices: tuple[str, ...]
    names: list[str]
    copies: Any

    def counts(self, batch: Arguments) -> tuple[int, ...]: ...

    def traces(self, batch: Arguments) -> list[Traced]: ...

    def whole(self, batch: Arguments) -> Traced: ...

    def called(
        self, traces: Sequence[Traced], batch: Arguments, devices: Sequence[str]
    ) -> list[list[Any]]: ...


class StepInSlices:
    """One batch through the step of one device, and of several; every variable is put back."""

    def __init__(self, step: Replicated, batch: Arguments) -> None:
        self._step_of, self._batch, self._counts = step, batch, step.counts(batch)
        self._whole, self._parts = step.whole(batch), step.traces(batch)

    @property
    def silent(self) -> bool:
        """Whether running it once more is seen by nobody."""
        return is_silent(self._whole)

    @cached_property
    def one(self) -> Values:
        with self._kept():
            return self._alone(self._batch)

    @cached_property
    def several(self) -> Values:
        with self._kept():
            self._step_of.copies.begin()
            results = self._step_of.called(self._parts, self._batch, self._step_of.devices)
            packed = [t.pack(leaves) for t, leaves in zip(self._parts, results, strict=True)]
            return self._values(packed, self._counts)

    def _alone(self, batch: Arguments) -> Values:
        leaves = self._whole.on(self._step_of.devices[0], batch.components(), {})
        return self._values([self._whole.pack(leaves)], [sum(self._counts)])

    def _values(self, results: Sequence[Any], counts: Sequence[int]) -> Values:
        shares = np.asarray(counts) / sum(counts)
        values: Values = {}
        for leaves in zip(*(flatten(logs) for logs, _ in results), strict=True):
            path = leaves[0][0]
            if is_tensor(leaves[0][1]):
                numbers = [dense(leaf) for _, leaf in leaves]
                mean = sum(n * s for n, s in zip(numbers, shares, strict=True))
                values[f"log{path}"] = np.asarray(mean)
        for name, gradient in zip(self._step_of.names, results[0][1], strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                # An optimizer sees how often a row comes.
                values[unlike(values, f"rows of {name}")] = np.sort(gradient.indices.numpy())
            values[unlike(values, f"gradient of {name}")] = dense(gradient)
        return values

    @cached_property
    def rows(self) -> tuple[Comparison, ...]:
        """Value by value."""
        size, step = sum(self._counts), self._step
        gaps = {leaf: gap(value, self.several.get(leaf)) for leaf, value in self.one.items()}
        rounding = {leaf: step * largest(value) for leaf, value in self.one.items()}
        if any(gaps[leaf] > margin(step) * rounding[leaf] for leaf in gaps):
            moved, orders, kinds = self._moved(), [self._permuted()], scales(self.one)
            rounding = {
                leaf: noise(leaf, value, kinds[kind(leaf)], step, moved, orders, size)
                for leaf, value in self.one.items()
            }
        allowed = {leaf: margin(step) * rounding[leaf] for leaf in gaps}
        causes = {leaf: "slices" if gaps[leaf] > allowed[leaf] else None for leaf in gaps}
        return tuple(Comparison(leaf, size, gaps[leaf], allowed[leaf], causes[leaf]) for leaf in gaps)

    @property
    def unequal(self) -> list[Comparison]:
        return [row for row in self.rows if not row.equal]

    @cached_property
    def random(self) -> bool:
        """Whether two runs on one device differ: it draws numbers. Streams go on meanwhile."""
        allowed = {row.leaf: row.tolerance for row in self.rows}
        for again in self._draws():
            if any(gap(value, again.get(leaf)) > allowed[leaf] for leaf, value in self.one.items()):
                return True
        return False

    def _draws(self) -> Iterator[Values]:
        """Runs on one device from the same variables, but for the states of random generators."""
        with self._kept():
            for _ in range(DRAWS):
                with self._kept(random=False):
                    yield self._alone(self._batch)

    @property
    def changes_states(self) -> bool:
        """Whether it changes variables by what is of a slice, other than random generators."""
        return any(not variable.dtype.is_integer for variable in self._step_of.copies.local.values())

    @property
    def summed(self) -> bool:
        """Whether gradients of one device are as many times larger as there are slices: of a sum."""
        count = len(self._counts)
        pairs = [(self.one[k], self.several.get(k)) for k in self.one if k.startswith("gradient")]
        norms = [(np.linalg.norm(a), np.linalg.norm(b)) for a, b in pairs if b is not None]
        ratios = [a / b for a, b in norms if b > 0]
        return bool(ratios and float(np.median(ratios)) >= 0.75 * count)

    @cached_property
    def _step(self) -> float:
        outputs = [output.op for output in self._whole.outputs if output.dtype.is_floating]
        return coarsest(ancestors(*outputs), but=("Placeholder", "Const"))

    def _moved(self) -> list[Values]:
        """With the last digits of all floats moved, those of inputs and of variables."""
        rng, step = np.random.default_rng(0), self._step
        floats = [v for v in self._whole.variables if v.dtype.is_floating]
        found = []
        for _ in range(MOVES):
            values = [
                nudged(leaf.value, step, rng)
                if isinstance(leaf.value, tf.Tensor) and leaf.value.dtype.is_floating
                else leaf.value
                for leaf in self._batch.leaves
            ]
            with self._kept(*floats):
                for variable in floats:
                    variable.assign(nudged(variable.numpy(), step, rng))
                found.append(self._alone(self._batch.with_values(values)))
        return found

    def _permuted(self) -> Values:
        order = np.random.default_rng(0).permutation(sum(self._counts))
        with self._kept():
            return self._alone(self._batch.rows(order))

    @contextmanager
    def _kept(self, *more: tf.Variable, random: bool = True) -> Iterator[None]:
        """Puts back what the step writes, in the copies of replicas too."""
        captured = [c for t in (self._whole, *self._parts) for c in t.captures if c.variable is not None]
        written = [c.variable for c in captured if c.written and (random or not is_random_state(c))]
        before: Mapping[int, Any] = {
            id(v): (v, tf.identity(v)) for v in (*written, *self._step_of.copies.every(), *more)
        }
        try:
            yield
        finally:
            for variable, value in before.values():
                variable.assign(value)
