"""What a model computes for a batch without training it: every device for its slice, variables as they are.

The first batch is held against one device, as in training: one trace and one run more, of the whole batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from keras.layers import BatchNormalization

from colonnade.errors import Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments, flatten, is_tensor, sizes
from colonnade.run.keras_steps.split_inputs import uncut
from colonnade.run.model.user_line import Failures
from colonnade.run.model.whole_batch import joined
from colonnade.run.move.reduce import star
from colonnade.run.parallel.gap import dense, nudged
from colonnade.run.parallel.tolerance import Values, margin
from colonnade.run.prove import slice_failure
from colonnade.run.prove.look import STATE, Look
from colonnade.run.prove.verdict import GO_ON, Prover
from colonnade.run.step.borrowed_homes import BorrowedHomes
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.keras_owner import layers_of
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import call_with_sums, problems
from colonnade.run.variables.aggregation import is_random_state
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.replica_copies import ReplicaCopies
from colonnade.run.variables.saved_state import named

# Gives what each slice of a batch gives.
OnSlices = Callable[[Arguments], list[Any]]
# What to compare, by name, given the results of slices and their sizes.
Compared = Callable[[Sequence[Any], Sequence[int]], Values]

# Copies of the model's variables on cards, if a training has some.
Lends = Callable[[], Homes | None]

# How often last digits are moved to see whether they decide a class.
TRIES = 8


def nothing_lent() -> None:
    """There is no training."""


@dataclass(frozen=True)
class Asked:
    """Who asks for what a model computes.

    Args:
        where: what the user called.
        name: of the model.
        prover: of the first batch.
        lends: of a training in the middle of which it is asked for.
    """

    where: str
    name: str
    prover: Prover
    lends: Lends = nothing_lent


class Forward:
    """A function of a batch that each device computes for its slice.

    Args:
        fn: the function.
        devices: where the slices go.
        asked: by whom, for messages.
    """

    def __init__(self, fn: Callable[..., Any], devices: Sequence[str], asked: Asked) -> None:
        self._devices, self._asked, self._failures = tuple(devices), asked, Failures()
        self._traces = TraceCache(lambda part, voice: Traced(self._noting(fn), part, voice), devices)
        # Between cards, what it only reads is with every one of them.
        self._mirrors = hardware.are_cards(devices) and len(devices) > 1
        self._lender: Homes | None = None
        self._read = BorrowedHomes("mirrored", devices)
        # What it changes, replicas change in copies, of which one value is made (see `replica_copies`).
        self._copies = ReplicaCopies(devices)
        self._examined = not asked.prover.wanted

    def counts(self, batch: Arguments) -> tuple[int, ...]:
        """How many rows each device gets."""
        check(self._asked.where, uncut(batch))
        return sizes(batch.size(self._asked.where) or 0, len(self._devices))

    def on_slices(
        self, batch: Arguments, counts: Sequence[int], devices: Sequence[str] | None = None
    ) -> OnSlices:
        """A function that gives what slices of such a batch give; made in eager code."""
        traces = self._traced(batch, counts)
        check(self._asked.where, problems(traces))
        bound = [self._bindings(i, traced) for i, traced in enumerate(traces)]
        self._copies.local |= {v.ref(): v for traced in traces for v in traced.written}
        check(self._asked.where, self._copies.problems())
        shares = [count / sum(counts) for count in counts]
        working = self._devices[: len(counts)] if devices is None else devices

        def results(given: Arguments) -> list[Any]:
            parts = [part.components() for part in given.parts(counts)]
            self._copies.begin()
            before = self._copies.before()
            leaves = call_with_sums(traces, working, parts, bound, star(len(counts)))
            done = [leaf for each in leaves for leaf in each if isinstance(leaf, tf.Tensor)]
            with tf.control_dependencies(done):
                self._copies.settle(shares, before)
            return [traced.pack(each) for traced, each in zip(traces, leaves, strict=True)]

        return results

    def _bindings(self, replica: int, traced: Traced) -> dict[Any, Any]:
        own = self._copies.bindings(replica, traced)
        if not self._mirrors:
            return own
        return own | self._read.bindings(replica, [c for c in traced.captures if not c.written])

    def begin(self) -> bool:
        """Before a batch: variables are as the user sees them. Whether the graphs made so far still serve."""
        lender = self._asked.lends() if self._mirrors else None
        same = lender is self._lender
        if not same:
            self._lender, self._read = lender, BorrowedHomes("mirrored", self._devices, lender)
        self._read.begin()
        return same

    def examine(self, batch: Arguments, compared: Compared) -> None:
        """Before anything comes of a first batch with several slices: hold it against one device."""
        counts = self.counts(batch)
        if self._examined or len(counts) < 2:
            return
        look, asked = self._look(batch, counts, compared), self._asked
        with slice_failure.told(asked.where, asked.name, lambda: look):
            asked.prover.examine_forward(
                look, partial(_by_rounding, look), partial(_problem, look, asked.name)
            )
        self._examined = True

    def forget(self) -> None:
        """Trace the function anew."""
        self._traces.forget()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Puts back all that the function changes."""
        changed = [(v, v.read_value()) for v in self._written()]
        try:
            yield
        finally:
            for variable, value in changed:
                variable.assign(value)

    def _written(self) -> tuple[tf.Variable, ...]:
        """All variables that the function writes, and the copies of them."""
        written = {v.ref(): v for traced in self._traces for v in traced.written}
        return (*written.values(), *self._copies.every())

    def _noting(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            with self._failures.noted():
                return fn(*args)

        return unconverted(noting)

    def _traced(self, batch: Arguments, counts: Sequence[int]) -> list[Traced]:
        whole = partial(self._traces.get, batch.resized(sum(counts)))
        with self._failures.told(self._asked.where, self._asked.name, counts, whole):
            parts = [batch.resized(count) for count in counts]
            return [self._traces.of_replica(part, i, len(counts)) for i, part in enumerate(parts)]

    def _look(self, batch: Arguments, counts: Sequence[int], compared: Compared) -> Look:
        total, first = [sum(counts)], self._devices[:1]
        # One after the other on the first device: TensorFlow prepares a function for each anew. A card
        # reads what it has itself.
        together = self.on_slices(batch, counts, None if self._mirrors else first * len(counts))
        alone = self.on_slices(batch, total)
        whole = self._traces.get(batch.resized(sum(counts)))

        def of_slices(given: Arguments) -> Values:
            return compared(together(given), counts) | self._states(whole)

        def of_one(given: Arguments) -> Values:
            return compared(alone(given), total) | self._states(whole)

        return Look(batch, whole, _ends(whole), of_one, of_slices, self._written())

    def _states(self, whole: Traced) -> Values:
        """What the function has made of variables, by name."""
        captured = [c for c in whole.captures if c.variable is not None and c.written]
        counts = [c.variable for c in captured if c.variable.dtype.is_integer and not is_random_state(c)]
        settled = [v for v in self._copies.settled if v.dtype.is_floating]
        return {f"{STATE} {name}": v.numpy() for name, v in named([*settled, *counts]).items()}


def predicted(predictions: Sequence[Any], where: str) -> Values:
    """What a batch is predicted to be, told from its slices, by name."""
    leaves = [(path, leaf) for path, leaf in flatten(joined(predictions, where)) if is_tensor(leaf)]
    return {f"prediction{path}": dense(leaf) for path, leaf in leaves}


def _ends(traced: Traced) -> tuple[Any, ...]:
    """The numbers that a trace gives; where it gives classes, all that they may have been made of."""
    if any(output.dtype.is_floating for output in traced.outputs):
        return tuple(traced.outputs)
    return tuple(tensor for op in traced.concrete.graph.get_operations() for tensor in op.outputs)


def _by_rounding(look: Look) -> bool:
    """Whether all that differs are choices, such as a class, and each is one that last digits decide.

    They are moved as far as numbers may differ, on one device.
    """
    if not all(_is_choice(look, row.leaf) for row in look.unequal):
        return False
    differs = {row.leaf: look.one[row.leaf] != look.several[row.leaf] for row in look.unequal}
    rng, floats = np.random.default_rng(0), [v for v in look.whole.variables if v.dtype.is_floating]
    step, given = margin(look.step) * look.step, [leaf.value for leaf in look.batch.leaves]
    for _ in range(TRIES):
        values = [nudged(v, step, rng) if _is_float(v) else v for v in given]
        with look.kept(floats):
            for variable in floats:
                variable.assign(nudged(variable.numpy(), step, rng))
            moved = look.alone(look.batch.with_values(values))
        differs = {leaf: where & (moved[leaf] == look.one[leaf]) for leaf, where in differs.items()}
        if not any(np.any(where) for where in differs.values()):
            return True
    return False


def _is_float(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def _is_choice(look: Look, leaf: str) -> bool:
    one, several = look.one[leaf], look.several.get(leaf)
    same_shape = several is not None and one.shape == several.shape
    return leaf.startswith("prediction") and same_shape and one.dtype.kind not in "fc"


def _problem(look: Look, name: str) -> Problem:
    """The first value that differs, and what that means."""
    unequal = look.unequal
    worst = next((row for row in unequal if row.leaf.startswith("prediction")), unequal[0])
    seen = f"{worst.leaf} differs by {worst.difference:.2g} from one device on the first batch, and "
    seen += f"{worst.tolerance:.1g} is rounding"
    one_device = f"use one device (devices=1), or {GO_ON}"
    if worst.leaf.startswith("prediction"):
        rule = f"lets examples influence each other, and a slice has only some of them: {seen}"
        norms = [one for one in layers_of(look.whole.written) if isinstance(one, BatchNormalization)]
        fix = "Let batch normalisation have synchronized=True, " if norms else ""
        if len([leaf for leaf in look.batch.split if leaf.path.startswith("x")]) > 1:
            fix += "name the inputs that have a row for each example (split=[...]), "
        fix += one_device
        return Problem("model", name, rule, fix[0].upper() + fix[1:])
    what, _, which = worst.leaf.partition(" ")
    rule = f"is given what is neither a mean nor a sum over the examples, and slices give it: {seen}"
    if what == STATE:
        rule = f"is given what is no mean over the examples, and the mean of the slices is kept: {seen}"
    return Problem({STATE: "variable"}.get(what, what), which, rule, f"Give it a mean, {one_device}")
