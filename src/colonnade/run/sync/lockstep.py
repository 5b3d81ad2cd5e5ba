"""`cn.Synchronous`, the default: at every step all replicas compute, gradients are averaged, one update."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.batch.shares import EvenShares, MeasuredShares, Shares
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import components, divided, plus, slice_specs, slices
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.protocols import Links, Outcome, Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import Memory, limited
from colonnade.run.move.reduce import Order, star
from colonnade.run.step.gradient_sums import Recipe, cut, joined, recipes
from colonnade.run.step.objective import Objective, Share
from colonnade.run.step.uncompilable import uncompilable
from colonnade.run.step.update import Update
from colonnade.run.sync.over_machines import (
    OTHER_BATCH,
    Totals,
    filled,
    of_own_data,
    other_batch,
    outputs_of_all,
    over_machines,
    refused,
    sizes_told,
)
from colonnade.run.sync.same_training import same_training, same_values
from colonnade.run.sync.slice_sums import SliceSums
from colonnade.run.sync.workers import Replicas, Workers
from colonnade.run.variables.homes import MODES, Bindings, Homes, mean_by
from colonnade.run.variables.saved_state import SavedState

DATA = ("whole", "sharded")
SPEEDS = "speeds"  # in a checkpoint: those of the devices, if they are measured
SHARES: dict[str, Callable[[int], Shares]] = {"even": EvenShares, "measured": MeasuredShares}


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
        sharded = settings.peers.sharded
        shares = SHARES[self.shares](len(settings.devices) if sharded else settings.num_replicas)
        traces = Traces(settings, timed=shares.timed)
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
        shares: how many rows of a batch each worker gets.
    """

    # Whether `gradient` is the plain sum, which a compiled update may make by itself.
    plain_sum: ClassVar[bool] = True

    def __init__(self, settings: Settings, traces: Traces, workers: Workers, shares: Shares) -> None:
        super().__init__(settings, traces)
        self.workers, self.shares, self.peers = workers, shares, settings.peers
        self._compared = False  # whether all machines were seen to train the same
        self._recipes: dict[Hashable, list[Recipe]] = {}  # by the kind of a batch and of its slices
        # Looks at the first batch, once all is prepared for it and before anything is trained.
        self.examine: Callable[[Arguments], None] | None = None

    def counts(self, rows: int) -> tuple[int, ...]:
        return self.shares.counts(rows)

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, with the sizes of slices that hold from now on."""
        self.shares.reconsider()
        return batch.key(), self.cut(batch), self.settings.compilation.on

    def house(self) -> Homes:
        return self.workers.house()

    def bind(self) -> None:
        self.workers.bind(self.housed)
        if self.traces.penalty is not None:
            self.housed.bindings(0, self.traces.penalty.captures)

    def prepare(self, batch: Arguments) -> None:
        self._check(batch)
        if limited(self.workers.every_device):
            counts = self.cut(batch)
            self.traces.check_memory(batch, max(counts), len(counts), lambda: self.memory(batch))
        self.traces.build()
        if self.settings.compilation.on or self.settings.compilation.undecided:
            self._check_compiling(batch)
        if self._housed is None:
            self._housed = self.house()
        self.bind()
        if self.peers.several:
            self._compare(batch)
        if self.examine is not None:
            examine, self.examine = self.examine, None
            examine(batch)

    def _compare(self, batch: Arguments) -> None:
        """See that all machines train the same; with data of their own, they meet new sizes one by one."""
        if self.peers.sharded:
            recipes = [self._how(batch), *self._recipes.values()]
            check("the loss function", of_own_data(self._traced(batch), recipes))
            if self._compared:
                return
        same_training(self.peers, batch, self.cut(batch), self.traces)
        same_values(self.peers, self.housed, "the first step on such a batch")
        self._compared = True

    def refused(self, traces: Sequence[Objective]) -> Iterable[Problem]:
        yield from self.workers.refused(traces)
        if self.peers.several:
            yield from refused(traces)

    def _check(self, batch: Arguments) -> None:
        """Refuse what cannot be trained this way."""
        check("the loss function", self.refused(self._traced(batch)))
        self._how(batch)

    def _check_compiling(self, batch: Arguments) -> None:
        """Refuse what XLA cannot compile, where that was asked for; else go on without it."""
        parts = slices(with_zeros(batch), self.workers.slices(self.cut(batch)))
        amiss = uncompilable(self._traced(batch), parts, timed=self.shares.timed)
        if self.settings.compilation.on:
            check("Trainer()", amiss)
        elif amiss:
            self.settings.compilation.decline(amiss[0].rule)

    def took(self, rows: int, steps: int, seconds: float) -> None:
        self.settings.compilation.note(rows, steps, seconds)

    def _traced(self, batch: Arguments) -> list[Objective]:
        """A trace for each slice."""
        parts = slice_specs(batch, self.workers.slices(self.cut(batch)))
        first = self.peers.offset
        return [self.workers.trace(part, first + i, first + len(parts)) for i, part in enumerate(parts)]

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
        self.peers.begin_graph()
        order = self.settings.order if len(own) == len(self.devices) else star(max(len(own), 1))
        how = self._how(batch)
        late = self.housed.late.of(self._traced(batch), own)
        with tf.control_dependencies(self.housed.late.before(late)):
            shares, calls = self.workers.compute(batch, counts, self.housed, how, order)
        # The rows of each worker; of machines that have none, all that they do is made elsewhere.
        working = list(own) or [1]
        rows, outputs = [share.gradients for share in shares], [share.outputs for share in shares[: len(own)]]
        sums = SliceSums.of(shares, own, 1 if self.peers.sharded else sum(counts), self.guard)
        known: Bindings = {}
        plain = self.plain_sum and sums.weight is None and not self.peers.several
        at_once = self.workers.sums_itself(rows) if plain else None
        by_copy = [[]] if at_once is not None else self._totals(shares, how, order)
        present = [sum(gradient is not None for gradient in column) for column in zip(*rows, strict=True)]
        if self.peers.several:
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
        if at_once is not None:
            penalty, write = tf.zeros([0]), partial(self._summed_and_written, at_once, rows, working, late)
        else:
            copies = [self.gradient(totals, present, weight, how) for totals in by_copy]
            calls = [*calls, *self.workers.unbroken(copies)]
            copies, loss, penalty = self._with_penalty(copies, loss, calls)
            write = partial(self._written, copies, working, known, late)
        self.shares.note([share.seconds for share in shares], own)
        undo = self._left_out if self.settings.on_nan == "skip" else None
        with tf.control_dependencies(calls):
            watched = self.guard.rows(sums.health, sums.replicas, [penalty])
            skipped = self.guard.guarded(watched, write, undo)
        return Outcome(loss, metrics, sums.replicas, skipped, outputs)

    def _totals(self, shares: Sequence[Share], how: Sequence[Recipe], order: Order) -> list[Totals]:
        """The sums of gradients over the workers: for each copy of the variables, piece and parameter."""
        rows = [[cut(*each) for each in zip(s.gradients, s.sizes, how, strict=True)] for s in shares]
        depth = max(len(recipe) if isinstance(recipe, tuple) else 1 for recipe in how)
        layers = [[[(*parts, *[None] * depth)[k] for parts in row] for row in rows] for k in range(depth)]
        by_layer = [self.workers.reduced(layer, order) for layer in layers]
        num_copies = max(len(copies) for copies in by_layer)
        nothing = [None] * len(how)  # has arrived at a copy
        full = [[*copies, *[nothing] * (num_copies - len(copies))] for copies in by_layer]
        return [list(totals) for totals in zip(*full, strict=True)]

    def _with_penalty(
        self, copies: Sequence[list[Any]], loss: Any, calls: Sequence[Any]
    ) -> tuple[list[list[Any]], Any, Any]:
        """The gradients of each copy and the loss with the penalty, and what of it must be finite.

        It is computed once, where the first copy is. Where gradients have arrived at others, it is sent on.
        """
        first, bound = self.devices[0], partial(self.housed.bindings_after, calls)
        if len(copies) == 1 or self.traces.penalty is None:
            gradients, loss, health = self.traces.with_penalty(copies[0], loss, first, bound)
            return [gradients, *copies[1:]], loss, health
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
        if not self.shares.timed:
            return state
        speeds = tuple(tf.Variable(speed, trainable=False) for speed in self.shares.speeds)
        return replace(state, own={**state.own, SPEEDS: speeds})

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        super().resume(own)
        speeds = own.get(SPEEDS, ())
        if self.shares.timed and len(speeds) == len(self.devices):  # others are measured again
            self.shares.speeds = np.array([float(speed) for speed in speeds])

    def explained(self, error: tf.errors.InvalidArgumentError) -> Exception:
        if OTHER_BATCH in error.message:
            return other_batch(sizes_told(error.message))
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
