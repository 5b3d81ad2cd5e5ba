"""One batch computed by one device and by several, value by value, and how much one differs from itself.

Whoever looks says how a batch is run; all that is written meanwhile is put back. How much may differ is
found out on one device (see `parallel.tolerance`), where the two are not as good as equal.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.parallel.gap import gap, largest, nudged
from colonnade.run.parallel.rounding import coarsest
from colonnade.run.parallel.tolerance import MOVES, Values, kind, margin, most_noise, noise, scales
from colonnade.run.parallel.verify_report import Comparison
from colonnade.run.prove.fixed_draws import is_fixed
from colonnade.run.trace.captures import ancestors
from colonnade.run.trace.ops import nodes
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
    "WriteFile",
)
# Ops whose results may be others in every run, all that is read being the same.
DRAWING = re.compile("Random|Uniform|Normal|Multinomial|Sampl|Shuffle|Rng|Iterator|Timestamp|PyFunc|Cudnn")
# Of these the ops that only say with which key something is to be drawn.
KEYS = re.compile("GetKeyCounter|GetAlg|RngReadAndSkip")
# Runs in which numbers that are drawn must differ once: a few of them may be equal by chance.
DRAWS = 3
# Multiples of the loss, none of them a power of 2: those are rounded as the loss itself is.
SCALES = (0.7, 1.1, 1.3, 1.7)
FIRST = "the first batch"
# So many times the rounding that is allowed show a mistake where values are not the user's.
CLEAR = 30.0
NOT_FINITE = "gradients of it are not finite"
# Begins the names of what a step keeps for the next one.
STATE = "state"
# The input that says which examples of a batch these are. It is no part of an example, and no parameter of a
# user's function has such a name.
POSITIONS = "positions in the batch"
# Of these kinds there is one value for each example, and no sum over them.
BY_EXAMPLE = ("prediction",)


@dataclass(frozen=True)
class Look:
    """What one device and several make of a batch.

    Args:
        batch: the first one.
        whole: the trace of the whole batch.
        ends: tensors in it behind which all that matters is computed.
        alone: what one device makes of a batch like this one, by name.
        together: what several devices make of it.
        writes: all variables that either writes.
        scaled: what one device makes of the batch from so many times the loss, taken back again, as far as
            that can be done.
    """

    batch: Arguments
    whole: Traced
    ends: tuple[Any, ...]
    alone: Callable[[Arguments], Values]
    together: Callable[[Arguments], Values]
    writes: tuple[tf.Variable, ...]
    scaled: Callable[[float], Values] | None = None

    @property
    def silent(self) -> bool:
        """Whether running it once more is seen by nobody."""
        return is_silent(self.whole)

    @cached_property
    def one(self) -> Values:
        with self.kept():
            return self.alone(self.batch)

    @cached_property
    def several(self) -> Values:
        with self.kept():
            return self.together(self.batch)

    @cached_property
    def rows(self) -> tuple[Comparison, ...]:
        """Value by value; where one differs, the cause is `slices`: it is for others to find a better one."""
        gaps = {leaf: gap(value, self.several.get(leaf)) for leaf, value in self.one.items()}
        rounding = {leaf: self.step * largest(value) for leaf, value in self.one.items()}
        if any(gaps[leaf] > margin(self.step) * rounding[leaf] for leaf in gaps):
            kinds = scales(self.one)
            most = {k: most_noise(v, kinds[kind(k)], self.step, self.size) for k, v in self.one.items()}
            # What no rounding can be needs no finding out.
            beyond = any(gaps[leaf] > margin(self.step) * most[leaf] for leaf in gaps)
            rounding = most if beyond else self._noise(gaps, kinds)
        allowed = {leaf: margin(self.step) * rounding[leaf] for leaf in gaps}
        causes = {leaf: "slices" if gaps[leaf] > allowed[leaf] else None for leaf in gaps}
        return tuple(Comparison(leaf, self.size, gaps[leaf], allowed[leaf], causes[leaf]) for leaf in gaps)

    @property
    def unequal(self) -> list[Comparison]:
        """Those that differ."""
        return [row for row in self.rows if not row.equal]

    @property
    def untold(self) -> str | None:
        """Why it proves nothing that nothing differs, if so: what there is could not differ."""
        if not np.all(np.isfinite(self.one.get("loss", 0.0))):
            return f"its loss is {float(self.one['loss'])}"
        gradients = [value for leaf, value in self.one.items() if leaf.startswith("gradient")]
        if not gradients:
            return None
        if not all(np.all(np.isfinite(value)) for value in gradients):
            return NOT_FINITE
        # Gradients may be kept first, and applied later.
        kept = [value for leaf, value in self.one.items() if leaf.startswith(STATE)]
        if not any(np.any(value) for value in (*gradients, *kept)):
            return "all gradients of it are 0"
        return None

    @property
    def tells(self) -> bool:
        """Whether values that nobody has given can be computed, in slices too, and show something."""
        try:
            return self.untold in (None, NOT_FINITE) and bool(self.several)
        except tf.errors.InvalidArgumentError:
            return False

    @property
    def clear(self) -> bool:
        """Whether something differs by far more than rounding was seen to make, or by more than it can."""
        kinds = scales(self.one)
        most = {
            r.leaf: most_noise(self.one[r.leaf], kinds[kind(r.leaf)], self.step, self.size) for r in self.rows
        }
        return any(
            row.difference > CLEAR * row.tolerance or row.difference > margin(self.step) * most[row.leaf]
            for row in self.unequal
        )

    @property
    def miscounted(self) -> bool:
        """Whether whole numbers that are kept differ, which no statistics of a slice do."""
        states = [row.leaf for row in self.unequal if row.leaf.startswith(STATE)]
        return any(self.one[leaf].dtype.kind in "iu" for leaf in states)

    @cached_property
    def random(self) -> bool:
        """Whether runs on one device differ: it draws numbers. Of all that is written only streams go on."""
        if not _may_draw(self.whole):
            return False
        allowed = {row.leaf: row.tolerance for row in self.rows}
        with self.kept():
            for _ in range(DRAWS):
                with self.kept(but_streams=True):
                    again = self.alone(self.batch)
                if any(gap(value, again.get(leaf)) > allowed[leaf] for leaf, value in self.one.items()):
                    return True
        return False

    @cached_property
    def summed_states(self) -> list[str]:
        """Those that are given sums: where all examples are the same one, means of slices are that of all.

        So are variances, and all else that is made of means, such as the statistics of batch normalisation.
        """
        same = _of_one_example(self.batch)
        with self.kept():
            one = self.alone(same)
        with self.kept():
            several = self.together(same)
        gaps = {leaf: gap(one[leaf], several.get(leaf)) for leaf in one if leaf.startswith(STATE)}
        differ = [leaf for leaf in gaps if gaps[leaf] > np.sqrt(self.step) * largest(one[leaf])]
        rng, kinds = np.random.default_rng(0), scales(one)
        moved = [self._moved(rng, _of_one_example) for _ in range(MOVES)] if differ else []
        most = {s: most_noise(one[s], kinds[kind(s)], self.step, self.size) for s in differ}
        return [
            s
            for s in differ
            if gaps[s] > margin(self.step) * most[s] or not self._is_noise(s, one[s], most[s], moved)
        ]

    def _is_noise(self, leaf: str, value: np.ndarray, most: float, moved: Sequence[Values]) -> bool:
        """Whether a value has no digits but those that rounding makes, so that it tells nothing.

        So is the mean of what a batch normalisation gives for examples that are the same one.
        """
        responses = [gap(value, other.get(leaf)) for other in moved]
        return any(np.sqrt(self.step) * largest(value) < response <= most for response in responses)

    @property
    def size(self) -> int:
        return self.batch.size("the batch") or 0

    @cached_property
    def step(self) -> float:
        """The coarsest step of the floats on the way to what matters."""
        ops = [end.op for end in self.ends if end.dtype.is_floating]
        return coarsest(ancestors(*ops), but=("Placeholder", "Const"))

    def _noise(self, gaps: dict[str, float], kinds: dict[str, float]) -> dict[str, float]:
        """What rounding does on one device: as much of it as explains all differences, or all that is seen.

        Every run can only add to what is allowed, so what some runs explain all of them would.
        """
        rng, moved, scaled = np.random.default_rng(0), list[Values](), list[Values]()
        move = moved, partial(self._moved, rng)
        scales = SCALES if self.scaled is not None else ()
        runs = [move, *((scaled, partial(self._computed_as, scale)) for scale in scales)]
        # Of examples that are all the same, those stay the same too: what batch normalisation makes of them
        # is nothing but rounding, and where each has last digits of its own it makes more of those.
        same = [(moved, partial(self._moved, rng, _of_one_example))] if _is_one_example(self.batch) else []
        order, by_leaf = self._permuted(), dict[str, float]()
        for results, run in [*runs, *[move] * (MOVES - 1), *same * MOVES]:
            results.append(run())
            by_leaf = {leaf: self._of_leaf(leaf, kinds[kind(leaf)], order, moved, scaled) for leaf in gaps}
            if all(gaps[leaf] <= margin(self.step) * by_leaf[leaf] for leaf in gaps):
                break
        return by_leaf

    def _of_leaf(
        self, leaf: str, of_kind: float, order: Values, moved: Sequence[Values], scaled: Sequence[Values]
    ) -> float:
        """What rounding was seen to do to one value."""
        value = self.one[leaf]
        if not np.any(value):
            # What cancels on one device to the last digit may leave one where its parts are in two slices.
            return max(self.step * of_kind, *(gap(value, other.get(leaf)) for other in moved))
        if kind(leaf).startswith(BY_EXAMPLE):
            return noise(leaf, value, of_kind, self.step, moved, (), self.size)
        seen = noise(leaf, value, of_kind, self.step, moved, [order], self.size)
        if self.scaled is not None and not scaled:
            return seen
        multiples = [each[leaf] for each in scaled if leaf in each]
        most = most_noise(value, of_kind, self.step, self.size)
        return max(seen, min(self._of_sums(leaf, value, of_kind, order, multiples), most))

    def _of_sums(self, leaf: str, value: Any, of_kind: float, order: Values, scaled: Sequence[Any]) -> float:
        """What rounding does to a sum over examples that are alike, which no order of them shows.

        Sums of equal numbers are rounded the same way again and again, so that errors add up and do not
        cancel. How much is another matter for every number; so it is looked at for some multiples of the
        loss. Where that cannot be done, and orders show less than rounding at random does, it is the most
        that it can be: half a step of the sum for every example, or a step of the largest number of its kind,
        for a sum may be small because large numbers cancel.
        """
        if scaled:
            return max(gap(value, other) for other in scaled)
        scale = self.step * largest(value)
        alike = gap(value, order.get(leaf)) < np.sqrt(self.size) * scale / 4
        most = max(self.size * scale / 2 / margin(self.step), self.step * of_kind)
        return most if alike else 0.0

    def _computed_as(self, scale: float) -> Values:
        assert self.scaled is not None
        with self.kept():
            return self.scaled(scale)

    def _moved(
        self, rng: np.random.Generator, changed: Callable[[Arguments], Arguments] = lambda batch: batch
    ) -> Values:
        """With the last digits of all floats moved, those of inputs and of variables; what becomes of a batch
        that is `changed` after that.
        """
        floats = [v for v in self.whole.variables if v.dtype.is_floating]
        values = [
            nudged(leaf.value, self.step, rng) if _is_float(leaf.value) else leaf.value
            for leaf in self.batch.leaves
        ]
        with self.kept(floats):
            for variable in floats:
                variable.assign(nudged(variable.numpy(), self.step, rng))
            return self.alone(changed(self.batch.with_values(values)))

    def _permuted(self) -> Values:
        """With the examples in another order."""
        order = np.random.default_rng(0).permutation(self.size)
        with self.kept():
            return self.alone(self.batch.rows(order))

    @contextmanager
    def kept(self, more: Iterable[tf.Variable] = (), *, but_streams: bool = False) -> Iterator[None]:
        """Puts back what is written, and some variables more."""
        streams = {c.variable.ref() for c in self.whole.captures if _is_stream(c)} if but_streams else set()
        before = {v.ref(): tf.identity(v) for v in (*self.writes, *more) if v.ref() not in streams}
        try:
            yield
        finally:
            for ref, value in before.items():
                ref.deref().assign(value)


def _of_one_example(batch: Arguments) -> Arguments:
    """Every example is the first one, and has its own place in the batch."""
    same = batch.rows(np.zeros(batch.size("the batch") or 0, int))
    both = zip(batch.leaves, same.leaves, strict=True)
    return same.with_values([one.value if one.path == POSITIONS else other.value for one, other in both])


def _is_one_example(batch: Arguments) -> bool:
    """Whether all examples are the same one."""
    pairs = zip(batch.leaves, _of_one_example(batch).leaves, strict=True)
    split = [(one.value, same.value) for one, same in pairs if one.role == "split"]
    if not all(isinstance(value, tf.Tensor) for value, _ in split):
        return False
    return all(np.array_equal(value.numpy(), same.numpy()) for value, same in split)


def is_silent(traced: Traced) -> bool:
    """Whether running a trace once more is seen by nobody."""
    return not any(node.op in SEEN_OUTSIDE for node in nodes(traced.concrete.graph.as_graph_def()))


def _may_draw(traced: Traced) -> bool:
    """Whether anything in a trace could be another number in another run."""
    ops = (node.op for node in nodes(traced.concrete.graph.as_graph_def()))
    others = any(
        capture.variable is None and capture.tensor.dtype == tf.resource for capture in traced.captures
    )
    if is_fixed(traced):  # keys are still made, and nothing is drawn with them
        return others or any(DRAWING.search(op) for op in ops if not KEYS.search(op))
    return others or any(map(_is_stream, traced.captures)) or any(map(DRAWING.search, ops))


def _is_stream(capture: Any) -> bool:
    return capture.variable is not None and capture.written and is_random_state(capture)


def _is_float(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating
