"""`cn.Synchronous`, the default: at every step all replicas compute, and one update is applied."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.batch.shares import EvenShares, MeasuredShares, Shares
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.graph_loop import Loop
from colonnade.run.engine.protocols import Outcome, Settings, Then
from colonnade.run.engine.traces import Descent, components, divided, divisor, specs, with_factor
from colonnade.run.memory.estimate import Memory, homes_of, limited, misfits, of_replicas
from colonnade.run.move.reduce import Order, bucket_for, reduce, spread, star, traffic
from colonnade.run.step.gradient_sums import Recipe, cut, joined, recipes
from colonnade.run.step.objective import Objective, Share
from colonnade.run.step.update import Update
from colonnade.run.trace.sync_cut import call_with_sums, problems
from colonnade.run.variables.homes import MODES, Homes, mean_of_first, owners_of
from colonnade.run.variables.saved_state import SavedState, resume, state_of

SPEEDS = "speeds"  # in a checkpoint: those of the devices, if they are measured
SHARES: dict[str, Callable[[int], Shares]] = {"even": EvenShares, "measured": MeasuredShares}


@dataclass(frozen=True)
class Synchronous:
    """One update per step, with the mean gradient over the global batch.

    Args:
        shares: `even` gives each device the same part of a batch; `measured` gives more to devices that
            are faster, from the time that they take. The gradient is exact in both.

    Example:
        >>> import colonnade as cn
        >>> sync = cn.Synchronous(shares="measured")
    """

    shares: str = "even"
    homes: ClassVar[tuple[str, ...]] = MODES

    def __post_init__(self) -> None:
        if not isinstance(self.shares, str) or self.shares not in SHARES:
            rule = f"must be {' or '.join(SHARES)}"
            raise InvalidArgument("Synchronous()", [Problem("shares", self.shares, rule, "Leave it out")])

    def problems(self, num_devices: int) -> Iterator[Problem]:
        yield from ()

    def engine(self, settings: Settings) -> "Lockstep":
        return Lockstep(settings, SHARES[self.shares](len(settings.devices)))


class Lockstep:
    """Builds the graph of a synchronous step for batches of any size.

    The order in a step: every replica computes losses and gradients; the gradients are summed along
    the order that the topology asks for; the update waits for all replicas, because they read what it
    writes; and nothing is written at all if a gradient is not finite.
    """

    _examined = True  # whether a trace looks at its gradients, or whoever adds up several does

    def __init__(self, settings: Settings, shares: Shares) -> None:
        self._settings, self.devices, self.shares = settings, settings.devices, shares
        self._descent = Descent(settings, timed=shares.timed, examined=self._examined)
        self._order = settings.order
        self._owners: dict[Any, int] = {}  # by the ref of a variable, where variables are partitioned
        self._placed: set[Update] = set()
        self._known_recipes: dict[Hashable, list[Recipe]] = {}
        self._fitting: dict[Hashable, int] = {}  # by the kind of a batch, the largest seen to fit memory
        self.residence: Homes | None = None

    @property
    def optimizer(self) -> Any:
        return self._descent.optimizer

    @property
    def parameters(self) -> list[tf.Variable]:
        return self._descent.parameters

    def loop(self, then: Then) -> Loop:
        return Loop(self, then)

    def prepare(self, batch: Arguments) -> None:
        """Trace the loss, make the optimizer's variables, and find a home for everything.

        Must run in eager code, before a step is built: variables are made here.
        """
        self._trace(batch)
        if limited(self.every_device):
            self._check_memory(batch)
        self._descent.build()
        if self.residence is None:
            self._house(self._descent.slots, self._descent.update(self._descent.specs))
        self._bind()
        if self._descent.penalty is not None:
            assert self.residence is not None
            self.residence.bindings(0, self._descent.penalty.captures)

    def _check_memory(self, batch: Arguments) -> None:
        """Refuse what does not fit; a batch that is no larger than one that fits is not looked at again."""
        largest, kind = max(self._counts(batch)), batch.resized(1).key()
        if largest > self._fitting.get(kind, 0):
            check("this training", misfits(self.memory(batch)))
            self._fitting[kind] = largest

    def _trace(self, batch: Arguments) -> None:
        counts = self._counts(batch)
        traces = self._traces(batch, counts)
        check("the loss function", problems(traces))
        self._recipes(batch, counts)

    def _traces(self, batch: Arguments, counts: Sequence[int]) -> list[Objective]:
        """One for each slice."""
        return [self._objective(part, i, len(counts)) for i, part in enumerate(specs(batch, counts))]

    def _recipes(self, batch: Arguments, counts: Sequence[int]) -> list[Recipe]:
        """For each parameter how to add up the gradients of slices of these sizes."""
        key = (batch.key(), tuple(counts))
        if key not in self._known_recipes:
            traces, whole = self._traces(batch, counts), partial(self._descent.of_one_device, batch)
            self._known_recipes[key], wrong = recipes(traces, counts, whole)
            check("the loss function", wrong)
        return self._known_recipes[key]

    @property
    def every_device(self) -> tuple[str, ...]:
        """Those of the replicas, and those on which layers that are split by width have parts."""
        return (*self.devices, *homes_of(self._descent.objectives))

    def memory(self, batch: Arguments) -> Memory:
        """An estimate of what a step on such a batch takes on each device; makes no variables."""
        counts = self._counts(batch)
        which = counts.index(max(counts))
        largest = self._objective(specs(batch, counts)[which], which, len(counts))
        part = with_factor(with_zeros(batch), counts)[which]
        mode, by = self._settings.mode, self._settings.dealt
        return of_replicas(largest, self.optimizer, part, self.devices, mode, len(counts), by)

    def _bind(self) -> None:
        assert self.residence is not None
        for objective in self._descent.objectives:
            for i in range(len(self.devices)):
                self.residence.bindings(i, objective.captures)
                self.residence.make_stand_ins(i, objective.captures)

    def _house(self, slots: Sequence[tf.Variable], update: Update) -> None:
        """Find a home for parameters and slots."""
        mode = self._settings.mode
        self.residence = Homes(mode, self.devices, self.parameters, slots)
        if mode == "partitioned":
            places = owners_of(self.parameters, self.devices, self._settings.dealt)
            self._owners = update.owners([self.every_device.index(place) for place in places])
            self.residence.deal({slot.ref(): 0 for slot in slots} | self._owners, self.every_device)

    def _objective(self, part: Arguments, replica: int, num_replicas: int) -> Objective:
        return self._descent.objective(part, replica, num_replicas)

    def _counts(self, batch: Arguments) -> tuple[int, ...]:
        total = batch.size("the batch")
        assert total is not None
        return self.shares.counts(total)

    def step(self, batch: Arguments) -> Outcome:
        """The graph of one step on a batch of known size; call it inside a tf.function."""
        assert self.residence is not None
        counts = self._counts(batch)
        total = sum(counts)
        order = self._order if len(counts) == len(self.devices) else star(len(counts))
        shares, calls = self._computed(batch, counts, order)
        loss, metrics, weight = _summed(shares)
        rows = [share.gradients for share in shares]
        if weight is None and self._sums_at_once(rows):
            penalty, write = tf.zeros([0]), partial(self._summed_and_written, rows)
        else:
            gradients = self._added(shares, self._recipes(batch, self._slices(batch)), order)
            if weight is not None:
                gradients = [divided(g, weight) for g in gradients]
            residence = self.residence
            gradients, loss, penalty = self._descent.with_penalty(
                gradients, loss, self.devices[0], lambda captures: residence.bindings_after(calls, captures)
            )
            write = partial(self._written, gradients, len(shares), order)
        per_replica = tf.stack([_own_mean(s, count, total) for s, count in zip(shares, counts, strict=True)])
        self.shares.note([share.seconds for share in shares], counts)
        undo = self._left_out if self._settings.on_nan == "skip" else None
        with tf.control_dependencies(calls):
            watched = self._descent.watched(shares, per_replica, [penalty])
            skipped = self._descent.guarded(watched, write, undo)
        return Outcome(loss, metrics, per_replica, skipped, [s.outputs for s in shares])

    def _computed(
        self, batch: Arguments, counts: Sequence[int], order: Order
    ) -> tuple[list[Share], list[Any]]:
        """What every replica adds to the step, and what to wait for until all have computed."""
        assert self.residence is not None
        parts = with_factor(batch, counts)
        traces = [self._objective(part, i, len(counts)) for i, part in enumerate(parts)]
        bindings = [
            self.residence.bindings(i, traced.captures) | self.residence.stand_ins(i, traced.captures)
            for i, traced in enumerate(traces)
        ]
        slices = [part.components() for part in parts]
        results = call_with_sums(traces, self.devices[: len(counts)], slices, bindings, order)
        shares = [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]
        return shares, [leaf for leaves in results for leaf in leaves if isinstance(leaf, tf.Tensor)]

    def _slices(self, batch: Arguments) -> Sequence[int]:
        """How many examples each trace is given: here those of a replica."""
        return self._counts(batch)

    def _added(self, shares: Sequence[Share], how: Sequence[Recipe], order: Order) -> list[Any]:
        """The sum of each gradient over the replicas."""
        rows = [[cut(*each) for each in zip(s.gradients, s.sizes, how, strict=True)] for s in shares]
        depth = max(len(parts) for row in rows for parts in row)
        layers = [[[(*parts, *[None] * depth)[k] for parts in row] for row in rows] for k in range(depth)]
        totals = zip(*(self._reduced(layer, order) for layer in layers), strict=True)
        columns = zip(*(share.gradients for share in shares), strict=True)
        present = [sum(gradient is not None for gradient in column) for column in columns]
        with tf.device(self.devices[0]):
            return [joined(*each)[0] for each in zip(totals, how, present, strict=True)]

    def _reduced(self, gradients: Sequence[Sequence[Any]], order: Order) -> list[Any]:
        working = self.devices[: len(gradients)]
        return reduce(gradients, working, order, bucket_bytes=bucket_for(working))

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `Resumable`)."""
        assert self.residence is not None
        kept = state_of(self.residence, self._descent.made, self._descent.lost())
        if not self.shares.timed:
            return kept
        speeds = tuple(tf.Variable(speed, trainable=False) for speed in self.shares.speeds)
        return SavedState(kept.common, {**kept.own, SPEEDS: speeds}, kept.random, kept.lost)

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step, whose values the user's variables have by now."""
        assert self.residence is not None
        resume(self.residence, own)
        speeds = own.get(SPEEDS, ())
        if self.shares.timed and len(speeds) == len(self.devices):  # others are measured again
            self.shares.speeds = np.array([float(speed) for speed in speeds])

    def next_join(self, step: int) -> int:
        """In lockstep the replicas agree after every step."""
        return step

    def told(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of a step on such a batch: how many replicas work, the dtype of the loss, those of the metrics."""
        return self._descent.told(batch, self._counts(batch))

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, with the sizes of slices that hold from now on."""
        self.shares.reconsider()
        return batch.key(), self._counts(batch)

    def _left_out(self) -> Any:
        """No update: what the replicas made of the states is forgotten too."""
        assert self.residence is not None
        with tf.control_dependencies(self.residence.restore_states()):
            return tf.constant(1)

    def _sums_at_once(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Whether the gradients of the replicas are summed by a compiled update, and not before it."""
        if self._settings.mode != "shared" or self._descent.penalty is not None:
            return False
        # A slice of another size may have gradients of another kind.
        kinds = {self._descent.update(row) for row in rows}
        return len(kinds) == 1 and self._update(rows[0]).compiles

    def _summed_and_written(self, rows: Sequence[Sequence[Any]]) -> Any:
        assert self.residence is not None
        update = self._update(rows[0])
        bindings = self.residence.update_bindings(0, update.captures)
        handles, place = update.bound(bindings), self.parameters[0].device
        with self._assigned(len(rows)):
            done = update.at_once([components(row) for row in rows], handles, place)
        return self._settled([done], len(rows))

    def _written(self, gradients: list[Any], num_active: int, order: Order) -> Any:
        update = self._update(gradients)
        copies = self._spread(gradients, num_active, order)
        with self._assigned(num_active):
            updates = [self._updated(update, mine, i) for i, mine in enumerate(copies)]
        return self._settled(updates, num_active)

    def _assigned(self, num_active: int) -> Any:
        """Around the update: what the function assigned to trained variables comes first."""
        assert self.residence is not None
        return tf.control_dependencies(self.residence.take_assigned(mean_of_first(num_active)))

    def _settled(self, ops: list[Any], num_active: int) -> Any:
        """After the update: states are averaged, and the update is counted."""
        assert self.residence is not None
        ops += [*self.residence.settle_states(mean_of_first(num_active)), self._descent.made.assign_add(1)]
        with tf.control_dependencies(ops):
            return tf.constant(0)

    def _spread(self, gradients: list[Any], num_active: int, order: Order) -> list[list[Any]]:
        """The gradients once for every copy of the variables."""
        if self._settings.mode != "mirrored" or len(self.devices) == 1:
            return [gradients]
        full = order if len(self.devices) == num_active else star(len(self.devices))
        return spread(gradients, self.devices, full)

    def _updated(self, update: Update, gradients: list[Any], home: int) -> Any:
        """Update one copy of the variables."""
        assert self.residence is not None
        bindings, mode = self.residence.update_bindings(home, update.captures), self._settings.mode
        undivided = mode == "shared" or (mode == "partitioned" and len(set(self.every_device)) == 1)
        if update.compiles and undivided:
            place = self.parameters[0].device if mode == "shared" else self.every_device[0]
            return update.at_once([components(gradients)], update.bound(bindings), place)
        device = None if mode == "partitioned" else self.devices[home]
        with tf.device(device), tf.name_scope(f"update_{home}"):
            return update.call(components(gradients), update.bound(bindings), self._function(update, home))

    def _function(self, update: Update, home: int) -> Any:
        """The function that updates one copy of the variables."""
        return update.concrete

    def _update(self, gradients: Sequence[Any]) -> Update:
        update = self._descent.update(gradients)
        if update in self._placed:
            return update
        if self._settings.mode == "shared":
            update.follow()
        if self._owners:
            update.place(self._owners, self.every_device)
        self._placed.add(update)  # a penalty makes sparse gradients dense, which is another update
        return update

    def enter(self) -> None:
        if self.residence is not None:
            self.residence.enter()

    def leave(self) -> None:
        if self.residence is not None:
            self.residence.leave()

    def explained(self, error: tf.errors.InvalidArgumentError) -> Exception:
        return self._descent.explained(error, self._culprit)

    def _culprit(self, replica: int, bad: Sequence[str]) -> str:
        """The device on which something is not finite; `bad` are the variables with such a gradient."""
        return self.devices[replica]

    def homes(self) -> dict[str, str]:
        return self.residence.where() if self.residence is not None else {}

    def replicas(self) -> list[list[tf.Variable]]:
        if self.residence is None:
            return [[] for _ in self.devices]
        return [self.residence.own(i, self.parameters) for i in range(len(self.devices))]

    def kept(self) -> list[tf.Variable]:
        return [self._descent.made, *(self.residence.streams() if self.residence is not None else [])]

    def traffic(self) -> float:
        """Gradients to device 0; back the gradient (mirrored), or the parameters that replicas read."""
        n = len(self.devices)
        up = traffic([self._descent.specs] * n, self._order).total
        held = [p.shape.num_elements() * p.dtype.size for p in self.parameters]
        if self._settings.mode == "partitioned":
            away = sum(
                size for size, p in zip(held, self.parameters, strict=True) if self._owners[p.ref()] != 0
            )
            return float(up + away + (n - 1) * sum(held))
        return float(up + (up if self._settings.mode == "mirrored" else (n - 1) * sum(held)))


def _summed(shares: Sequence[Share]) -> tuple[Any, dict[str, Any], Any]:
    loss = tf.add_n([share.loss for share in shares])
    metrics = {name: tf.add_n([share.metrics[name] for share in shares]) for name in shares[0].metrics}
    if shares[0].weight is None:
        return loss, metrics, None
    weight = divisor(tf.add_n([share.weight for share in shares]))
    return loss / weight, {name: value / weight for name, value in metrics.items()}, weight


def _own_mean(share: Share, count: int, total: int) -> Any:
    if share.weight is None:
        return share.loss * (total / count)
    return tf.math.divide_no_nan(share.loss, share.weight)  # a slice may have no weight at all
