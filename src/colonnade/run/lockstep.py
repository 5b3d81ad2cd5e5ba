"""Training in lockstep: every step, all replicas compute, and the model moves once."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.descent import Descent, components, divided
from colonnade.run.engine import Outcome, Settings, Then
from colonnade.run.loop import Loop
from colonnade.run.objective import Share
from colonnade.run.reduce import Order, bucket_for, reduce, spread, star, traffic
from colonnade.run.residence import MODES, Residence, mean_of_first
from colonnade.run.segments import together
from colonnade.run.shares import Even, Measured, Shares
from colonnade.run.split import Arguments
from colonnade.run.update import Update

SHARES: dict[str, Callable[[int], Shares]] = {"even": Even, "measured": Measured}


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
        if self.shares not in SHARES:
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

    def __init__(self, settings: Settings, shares: Shares) -> None:
        self._settings, self.devices, self._shares = settings, settings.devices, shares
        self._descent = Descent(settings, timed=shares.timed)
        self._order = settings.order
        self._owners: dict[Any, int] = {}  # by the ref of a variable, where variables are partitioned
        self._placed: set[Update] = set()
        self.residence: Residence | None = None

    @property
    def parameters(self) -> list[tf.Variable]:
        return self._descent.parameters

    def loop(self, then: Then) -> Loop:
        return Loop(self, then)

    def prepare(self, batch: Arguments) -> None:
        """Trace the loss, make the optimizer's variables, and find a home for everything.

        Must run in eager code, before a step is built: variables are made here.
        """
        self._descent.prepare(batch, self._counts(batch))
        if self.residence is None:
            self._settle()
        assert self.residence is not None
        for objective in self._descent.objectives:
            for i in range(len(self.devices)):
                self.residence.bindings(i, objective.captures)

    def _settle(self) -> None:
        mode, slots = self._settings.mode, self._descent.slots
        self.residence = Residence(mode, self.devices, self.parameters, slots)
        update = self._descent.update(self._descent.specs)
        if mode == "partitioned":
            self._owners = update.owners(len(self.devices))
            self.residence.deal({slot.ref(): 0 for slot in slots} | self._owners)

    def _counts(self, batch: Arguments) -> tuple[int, ...]:
        total = batch.size("the batch")
        assert total is not None
        return self._shares.counts(total)

    def step(self, batch: Arguments) -> Outcome:
        """The graph of one step on a batch of known size; call it inside a tf.function."""
        assert self.residence is not None
        counts = self._counts(batch)
        working, total = self.devices[: len(counts)], sum(counts)
        order = self._order if len(counts) == len(self.devices) else star(len(counts))
        parts = _with_factor(batch, counts)
        traces = [self._descent.objective(part, i, len(counts)) for i, part in enumerate(parts)]
        bindings = [self.residence.bindings(i, traced.captures) for i, traced in enumerate(traces)]
        slices = [part.components() for part in parts]
        results = together(traces, working, slices, bindings, order)
        shares = [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]
        calls = [leaf for leaves in results for leaf in leaves if isinstance(leaf, tf.Tensor)]
        gradients = reduce([s.gradients for s in shares], working, order, bucket_bytes=bucket_for(working))
        loss, metrics, weight = _summed(shares)
        if weight is not None:
            gradients = [divided(g, weight) for g in gradients]
        residence = self.residence
        gradients, loss = self._descent.with_penalty(
            gradients, loss, self.devices[0], lambda captures: residence.bindings(0, captures)
        )
        per_replica = tf.stack([_own_mean(s, count, total) for s, count in zip(shares, counts, strict=True)])
        self._shares.note([share.seconds for share in shares], counts)
        undo = self._left_out if self._settings.on_nan == "skip" else None
        with tf.control_dependencies(calls):
            skipped = self._descent.guarded(
                self._descent.watched(shares, per_replica),
                lambda: self._written(gradients, len(shares), order),
                undo,
            )
        return Outcome(loss, metrics, per_replica, skipped, [s.outputs for s in shares])

    def told(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of a step on such a batch: how many replicas work, the dtype of the loss, those of the metrics."""
        return self._descent.told(batch, self._counts(batch))

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, with the sizes of slices that hold from now on."""
        self._shares.reconsider()
        return batch.key(), self._counts(batch)

    def _left_out(self) -> Any:
        """No update: what the replicas made of the states is forgotten too."""
        assert self.residence is not None
        with tf.control_dependencies(self.residence.restore_states()):
            return tf.constant(1)

    def _written(self, gradients: list[Any], num_active: int, order: Order) -> Any:
        assert self.residence is not None
        update, mode = self._update(gradients), self._settings.mode
        homes = self.devices if mode == "mirrored" else self.devices[:1]
        full = order if len(homes) == num_active else star(len(homes))
        copies = spread(gradients, homes, full) if len(homes) > 1 else [gradients]
        ops = []
        for i, (device, mine) in enumerate(zip(homes, copies, strict=True)):
            bindings = self.residence.update_bindings(i, update.captures)
            with tf.device(None if mode == "partitioned" else device), tf.name_scope(f"update_{i}"):
                ops.append(update.call(components(mine), update.bound(bindings)))
        ops += [*self.residence.settle_states(mean_of_first(num_active)), self._descent.made.assign_add(1)]
        with tf.control_dependencies(ops):
            return tf.constant(0)

    def _update(self, gradients: Sequence[Any]) -> Update:
        update = self._descent.update(gradients)
        if self._owners and update not in self._placed:
            update.place(self._owners, self.devices)
            self._placed.add(update)  # a penalty makes sparse gradients dense, which is another update
        return update

    def enter(self) -> None:
        if self.residence is not None:
            self.residence.enter()

    def leave(self) -> None:
        if self.residence is not None:
            self.residence.leave()

    def explained(self, error: tf.errors.InvalidArgumentError) -> Exception:
        return self._descent.explained(error)

    def homes(self) -> dict[str, str]:
        return self.residence.homes() if self.residence is not None else {}

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


def _with_factor(batch: Arguments, counts: Sequence[int]) -> list[Arguments]:
    factor = tf.constant(1.0 / sum(counts), tf.float64)
    return [part.prefixed(factor) for part in batch.parts(counts)]


def _summed(shares: Sequence[Share]) -> tuple[Any, dict[str, Any], Any]:
    loss = tf.add_n([share.loss for share in shares])
    metrics = {name: tf.add_n([share.metrics[name] for share in shares]) for name in shares[0].metrics}
    if shares[0].weight is None:
        return loss, metrics, None
    weight = tf.add_n([share.weight for share in shares])
    return loss / weight, {name: value / weight for name, value in metrics.items()}, weight


def _own_mean(share: Share, count: int, total: int) -> Any:
    if share.weight is None:
        return share.loss * (total / count)
    return tf.math.divide_no_nan(share.loss, share.weight)  # a slice may have no weight at all
