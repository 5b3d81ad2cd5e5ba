"""`cn.Synchronous`, the default: at every step all replicas compute, gradients are averaged, one update."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from colonnade.errors import BrokenSums, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.shares import MeasuredShares
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import components, divided, plus, slices
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.protocols import Links, Outcome, Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import Memory, limited
from colonnade.run.move.library_sums import is_broken
from colonnade.run.move.reductions import LIBRARY
from colonnade.run.move.slices_ahead import SlicesAhead
from colonnade.run.parallel.uncompilable import uncompilable
from colonnade.run.step.gradient_sums import Recipe, Totals, joined, recipes, totals_of
from colonnade.run.step.objective import Objective
from colonnade.run.step.update import Update
from colonnade.run.sync.over_machines import (
    OTHER_BATCH,
    filled,
    of_own_data,
    other_batch,
    outputs_of_all,
    over_machines,
    refused,
    sizes_told,
)
from colonnade.run.sync.same_training import SPOILT, same_training, same_values
from colonnade.run.sync.slice_sums import SliceSums
from colonnade.run.sync.workers import Replicas, Workers
from colonnade.run.trace.captures import Capture
from colonnade.run.variables.aggregation import mean_by
from colonnade.run.variables.homes import MODES, Bindings, Homes
from colonnade.run.variables.saved_state import SavedState
from colonnade.run.variables.slice_values import local_variables

DATA = ("whole", "sharded")
SHARES = ("even", "measured")
SPEEDS = "speeds"  # in a checkpoint: those of the devices, if they are measured


@dataclass(frozen=True)
class Synchronous:
    """One update per step, with the mean gradient over the global batch.

    Args:
        shares: `even` gives each device the same part of a batch; `measured` gives more to devices that
            are faster, from the time that they take. The gradient is exact in both.
        data: where several machines train together: `whole` if each reads all of the data and keeps its
            rows, `sharded` if each brings a part of its own (see `docs/machines_training.md`).

    Example:
        >>> import colonnade as cn
        >>> sync = cn.Synchronous(shares="measured")
    """

    shares: str = "even"
    data: str = "whole"
    homes: ClassVar[tuple[str, ...]] = MODES

    def __post_init__(self) -> None:
        check("Synchronous()", self._problems())

    def _problems(self) -> Iterator[Problem]:
        for name, known in (("shares", SHARES), ("data", DATA)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                yield Problem(name, value, f"must be {' or '.join(known)}", "Leave it out")

    def problems(self, num_devices: int) -> Iterator[Problem]:
        yield from ()

    def engine(self, settings: Settings) -> "Lockstep":
        if self.data == "sharded" and settings.peers.several:
            settings = replace(settings, peers=settings.peers.with_own_data())
        timed = self.shares == "measured"
        traces = Traces(settings, timed=timed)
        shares = MeasuredShares(settings.num_replicas, settings.peers.first) if timed else None
        return Lockstep(settings, traces, Replicas(settings, traces), shares)


class Lockstep(GraphEngine):
    """Builds the graph of a synchronous step for batches of any size.

    The order in a step: every worker computes losses and gradients; the gradients are summed along
    the order that the topology asks for; the update waits for all workers, because they read what it
    writes; and nothing is written at all if a gradient is not finite.

    Args:
        settings: what to train, and how.
        traces: of the loss and the update.
        workers: who computes the gradients: replicas, or rows of a pipeline.
        shares: how many rows of a batch each worker gets; the same for all, if nothing is said.
    """

    # Whether `gradient` is the plain sum, which a compiled update may make by itself.
    plain_sum: ClassVar[bool] = True

    def __init__(
        self,
        settings: Settings,
        traces: Traces,
        workers: Workers,
        shares: MeasuredShares | None = None,
    ) -> None:
        super().__init__(settings, traces)
        self.workers, self.shares, self.peers = workers, shares, settings.peers
        self._several = settings.peers.several
        # How many slices a batch is cut into: those of all machines, unless each has data of its own.
        self._num_slices = len(self.devices) if self.peers.sharded else self.num_replicas
        self._compared = False  # whether all machines were seen to train the same
        # Kinds of batches on which steps were begun: where sums must not be broken off, these have a graph of
        # their own, in which nobody waits as long as for the kernels of the first steps.
        self._begun: set[Hashable] = set()
        self._recipes: dict[Hashable, list[Recipe]] = {}  # by the kind of a batch and of its slices

    def counts(self, rows: int) -> tuple[int, ...]:
        return sizes(rows, self._num_slices) if self.shares is None else self.shares.counts(rows)

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, with the sizes of slices that hold from now on."""
        if self.shares is not None:
            self.shares.reconsider()
        kind = self._kind(batch)
        return (*kind, kind in self._begun) if self.workers.unbroken else kind

    def _kind(self, batch: Arguments) -> tuple[Hashable, ...]:
        return batch.key(), self.cut(batch), self.settings.compilation.on

    def house(self) -> Homes:
        return self.workers.house()

    def bind(self, housed: Homes) -> None:
        self.workers.bind(housed)
        if self.traces.penalty is not None:
            housed.bindings(0, self.traces.penalty.captures)
            check("the penalty", self._of_slices(housed, self.traces.penalty.captures))

    def _of_slices(self, housed: Homes, captures: Iterable[Capture]) -> Iterator[Problem]:
        """States that the penalty reads before they are one value: of those the first replica has its own."""
        states = [housed.states.get(c.variable.ref()) for c in captures if c.variable is not None]
        several = self.peers.several
        read = [s for s in states if s is not None and not s.random and (several or len(s.copies) > 1)]
        local = (
            {v.ref() for traced in self.traces.objectives for v in local_variables(traced)} if read else ()
        )
        for state in read:
            if state.base is not None or state.original.ref() in local:
                rule = "is changed by the loss from its slice, and the penalty would see one device's value"
                yield Problem(
                    "variable", state.original.name, rule, "Compute what needs it in the loss itself"
                )

    def prepare(self, batch: Arguments) -> None:
        self._check(batch)
        if hardware.has_limits() and limited(self.workers.every_device):
            counts = self.cut(batch)
            self.traces.check_memory(batch, max(counts), len(counts), lambda: self.memory(batch))
        self.traces.build()
        if self.settings.compilation.on or self.settings.compilation.undecided:
            self._check_compiling(batch)
        if self._housed is None:
            self._housed = self.house()
        self.bind(self._housed)
        if self._several:
            self._compare(batch)
        self.examined(batch)

    def ahead(self, batch: Arguments) -> SlicesAhead | None:
        return super().ahead(batch) if isinstance(self.workers, Replicas) else None

    def _compare(self, batch: Arguments) -> None:
        """See that all machines train the same; with data of their own, they meet new sizes one by one."""
        if self.peers.sharded:
            recipes = [self._how(batch), *self._recipes.values()]
            check("the loss function", of_own_data(self._traced(batch), recipes))
            if self._compared:
                return
        same_training(self.peers, batch, self.cut(batch), self.traces, alike=not self.peers.sharded)
        same_values(self.peers, self.housed, "the first step on such a batch")
        self._compared = True

    def end_fit(self) -> None:
        """After a fit, in which a callback of one machine may have assigned something: all have the same."""
        if self._several and self._housed is not None:
            same_values(self.peers, self._housed, "the end of the fit", SPOILT)

    def refused(self, traces: Sequence[Objective]) -> Iterable[Problem]:
        yield from self.workers.refused(traces)
        if self._several:
            yield from refused(traces)

    def _check(self, batch: Arguments) -> None:
        """Refuse what cannot be trained this way."""
        check("the loss function", self.refused(self._traced(batch)))
        self._how(batch)

    def _check_compiling(self, batch: Arguments) -> None:
        """Refuse what XLA cannot compile, where that was asked for; else go on without it."""
        parts = slices(with_zeros(batch), self.workers.slices(self.cut(batch)))
        amiss = uncompilable(self._traced(batch), parts, timed=self.shares is not None)
        if self.settings.compilation.on:
            self.settings.compilation.refuse(amiss)
        elif amiss:
            self.settings.compilation.decline(amiss[0].rule)

    def begin(self, batch: Arguments) -> None:
        self._begun.add(self._kind(batch))
        self.housed.late.begin(self.peers.own(self.cut(batch)))

    def took(self, rows: int, steps: int, seconds: float) -> None:
        self.settings.compilation.note(rows, steps, seconds)

    def _traced(self, batch: Arguments) -> list[Objective]:
        """A trace for each slice."""
        return self.workers.traced(batch, self.cut(batch))

    def _how(self, batch: Arguments) -> list[Recipe]:
        """For each parameter how to add up the gradients of the slices."""
        counts = tuple(self.workers.slices(self.cut(batch)))
        key = (batch.key(), counts)
        if key not in self._recipes:
            whole = partial(self.traces.of_one_device, batch)
            traces = self._traced(batch)
            if self.peers.sharded and len(traces) == 1:  # there are slices on other machines
                traces, counts = [*traces, *traces], (*counts, *counts)
            self._recipes[key], wrong = recipes(traces, counts, whole)
            check("the loss function", wrong)
        return self._recipes[key]

    def memory(self, batch: Arguments) -> Memory:
        self._check(batch)
        return self.workers.memory(batch, self._traced(batch), self.cut(batch))

    def outcome_spec(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        share = self._traced(batch)[0].structure
        dtypes = {name: value.dtype for name, value in share.metrics.items()}
        active = self.peers.total if self.peers.sharded else len(self.cut(batch))
        return active, share.loss.dtype, dtypes

    def step(self, batch: Arguments) -> Outcome:
        counts = self.cut(batch)
        own = self.peers.own(counts)
        how = self._how(batch)
        late = self.housed.late.of(self._traced(batch), own)
        with tf.control_dependencies(self.housed.late.before(late, own)):
            shares, calls = self.workers.compute(batch, counts, self.housed, how)
        # The rows of each worker; of machines that have none, all that they do is made elsewhere.
        working = list(own) or [1]
        rows, outputs = [share.gradients for share in shares], [share.outputs for share in shares[: len(own)]]
        sums = SliceSums.of(shares, own, 1 if self.peers.sharded else sum(counts), self.guard)
        known: Bindings = {}
        plain = self.plain_sum and sums.weight is None and not self._several
        at_once = self.workers.sums_itself(rows) if plain else None
        reduced = partial(self.workers.reduced, first=self._kind(batch) not in self._begun)
        by_copy = [[]] if at_once is not None else totals_of(shares, how, reduced)
        present = [sum(gradient is not None for gradient in column) for column in zip(*rows, strict=True)]
        if self._several:
            traces = self._traced(batch)
            totals, present = filled(by_copy[0], traces, how), _present(traces)
            with tf.control_dependencies(calls):  # which change the states
                sums, totals, known = over_machines(
                    self.peers, batch, sums, totals, self.housed.shared_states(), counts
                )
            by_copy = [totals]
            if traces[0].structure.outputs is not None:
                outputs = outputs_of_all(self.peers, outputs, traces, len(counts))
        loss, metrics, weight = sums.means()
        health = sums.health
        if at_once is not None:
            penalty, write = tf.zeros([0]), partial(self._summed_and_written, at_once, rows, working, late)
        else:
            copies = [self.gradient(totals, present, weight, how) for totals in by_copy]
            if self.workers.unbroken:
                calls = [*calls, *components([gradient for copy in copies for gradient in copy])]
            copies, loss, penalty = self._with_penalty(copies, loss, calls)
            health = self.guard.of_sums(health, copies[0])
            copies = self.workers.everywhere(copies)
            write = partial(self._written, copies, working, known, late)
        if self.shares is not None:
            took = self.shares.of_step([share.seconds for share in shares[: len(own)]], own)
            # All machines note the same bits, so all change the sizes alike, and at the same step.
            self.shares.note(self.peers.sum([took])[0] if self._several else took)
        undo = self._left_out if self.settings.on_nan == "skip" else None
        with tf.control_dependencies(calls):
            watched = self.guard.rows(health, sums.replicas, [penalty])
            skipped = self.guard.guarded(watched, write, undo)
        return Outcome(loss, metrics, sums.replicas, skipped, outputs)

    def _with_penalty(
        self, copies: Sequence[list[Any]], loss: Any, calls: Sequence[Any]
    ) -> tuple[list[list[Any]], Any, Any]:
        """The gradients of each copy and the loss with the penalty, and what of it must be finite.

        It is computed once, where the first copy is. Where gradients have arrived at others, it is sent on.
        """
        first, bound = self.devices[0], partial(self.housed.bindings_after, calls)
        if self.traces.penalty is None:
            return list(copies), loss, tf.zeros([0])
        if len(copies) == 1:
            gradients, loss, health = self.traces.with_penalty(copies[0], loss, first, bound)
            return [gradients], loss, health
        extra, loss, health = self.traces.with_penalty([None] * len(copies[0]), loss, first, bound)
        everywhere = self.workers.spread(extra)
        sums = []
        for number, (own, more) in enumerate(zip(copies, everywhere, strict=True)):
            with tf.device(self.devices[number]):
                pairs = zip(own, more, strict=True)
                # What has not arrived at a copy is sent later, with its penalty.
                sums.append([None if number and g is None else plus(g, e) for g, e in pairs])
        return sums, loss, health

    def gradient(
        self, totals: Totals, present: Sequence[int], weight: Any, how: Sequence[Recipe]
    ) -> list[Any]:
        """The gradient of the global batch, from sums; over the weight if there is one."""
        with tf.device(self.devices[0]):
            sums = [joined(*each)[0] for each in zip(zip(*totals, strict=True), how, present, strict=True)]
        return sums if weight is None else [_divided_at_home(gradient, weight) for gradient in sums]

    def _summed_and_written(
        self, update: Update, rows: Sequence[Sequence[Any]], working: Sequence[int], late: frozenset[Any]
    ) -> Any:
        bindings = self.housed.update_bindings(0, update.captures)
        handles, place = update.bound(bindings), self.parameters[0].device
        with self._assigned(working):
            done = update.at_once([components(row) for row in rows], handles, place)
        return self._settled([done], working, {}, late)

    def _written(
        self, copies: Sequence[list[Any]], working: Sequence[int], known: Bindings, late: frozenset[Any]
    ) -> Any:
        with self._assigned(working, known):
            updates = self.workers.updated(copies, self.housed)
        return self._settled(updates, working, known, late)

    def _assigned(self, working: Sequence[int], known: Bindings | None = None) -> Any:
        """Around the update: what the function assigned to trained variables comes first."""
        return tf.control_dependencies(self.housed.take_assigned(mean_by(working), known))

    def _settled(self, ops: list[Any], working: Sequence[int], known: Bindings, late: frozenset[Any]) -> Any:
        """After the update: states are averaged, but for those that are late, and the update is counted."""
        states = self.housed.settle_states(mean_by(working), known=known, late=late)
        with tf.control_dependencies([*ops, *states, self.guard.made.assign_add(1)]):
            return tf.constant(0)

    def _left_out(self) -> Any:
        """No update: what the replicas made of the states is forgotten too."""
        with tf.control_dependencies(self.housed.undo_states()):
            return tf.constant(1)

    def state(self) -> SavedState:
        state = super().state()
        if self.shares is None:
            return state
        speeds = tuple(tf.Variable(speed, trainable=False) for speed in self.shares.speeds)
        return replace(state, own={**state.own, SPEEDS: speeds})

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        super().resume(own)
        speeds = own.get(SPEEDS, ())
        if self.shares is not None and len(speeds) == len(self.shares.speeds):  # others are measured again
            self.shares.speeds = np.array([float(speed) for speed in speeds])

    def explained(self, error: tf.errors.OpError) -> Exception:
        if OTHER_BATCH in error.message:
            return other_batch(sizes_told(error.message))
        if self.workers.unbroken and is_broken(error):
            return BrokenSums(LIBRARY, error.message)
        return super().explained(error)

    def culprit(self, replica: int, bad: Sequence[str]) -> str:
        return self.workers.culprit(replica, bad)

    def links(self) -> Links:
        return self.workers.links()


def _divided_at_home(gradient: Any, weight: Any) -> Any:
    with tf.device(None if gradient is None else gradient.device):
        return divided(gradient, weight)


def _present(traces: Sequence[Objective]) -> list[int]:
    """For each parameter how many slices have a gradient of it."""
    columns = zip(*(traced.structure.gradients for traced in traces), strict=True)
    return [sum(gradient is not None for gradient in column) for column in columns]
