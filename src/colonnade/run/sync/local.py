"""What happens at `sync=cn.LocalSGD(8)`: replicas take steps on variables of their own, then are joined."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import components, divided, divisor
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.protocols import Links, Outcome, Settings
from colonnade.run.move.reduce import traffic
from colonnade.run.step.objective import Share
from colonnade.run.step.untrainable import split_by_width
from colonnade.run.step.update import inside
from colonnade.run.sync.averaging import Held, Join
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import refusals
from colonnade.run.variables.aggregation import mean_of, wide
from colonnade.run.variables.digests import equal
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import Item, SavedState, bases, named

SEEN = "seen"  # in a checkpoint: what each replica has seen since the last join


class Local(GraphEngine):
    """Builds the graph of a step of local training, which ends with a join every so many steps.

    The gradient of a replica is that of the mean over its own slice. The replicas' optimizers all count
    global steps, so a schedule means the same for each of them. The user's variables hold the result of a
    join after it; in between they show the average of the replicas when steps end (of elastic training:
    the centre).
    """

    def __init__(self, settings: Settings, every: int, join: Join) -> None:
        super().__init__(settings)
        self._every, self._join = every, join
        self._shown: list[Any] | None = None  # the values that the user's variables were left with
        self._shows: dict[int, Any] = {}
        with tf.device("/device:CPU:0"):
            self._skips = tf.Variable(0, dtype=tf.int64, trainable=False, name="skips")
            # Examples, or sums of weights, that each replica has seen since the last join.
            self._seen = tf.Variable(tf.zeros([len(self.devices)], tf.float64), trainable=False, name="seen")

    def refused(self, traces: Sequence[Traced]) -> Iterator[Problem]:
        yield from split_by_width(traces[0])
        if len(self.devices) > 1:
            yield from refusals(traces[0])
        if len(traces) < len(self.devices):
            yield from _accumulating(self.optimizer, len(traces), len(self.devices))

    def house(self) -> Homes:
        """Every replica has variables of its own."""
        self._join.settle(self.parameters, self.devices[0])
        return Homes("local", self.devices, self.parameters, self.traces.slots)

    def _held(self) -> Held:
        copies = [self.housed.own(i, self.parameters) for i in range(len(self.devices))]
        return Held(self.parameters, copies, self.devices, self.settings.order)

    def step(self, batch: Arguments) -> Outcome:
        """The graph of one step on a batch of known size; call it inside a tf.function."""
        counts = self.cut(batch)
        before = [(copy, copy.read_value()) for copy in self._states()]
        shares, gradients, losses, penalties, calls = [], [], [], [], []
        for i, (part, count) in enumerate(zip(batch.parts(counts), counts, strict=True)):
            share, gradient, loss, penalty, leaves = self._own(i, part, count, len(counts))
            shares.append(share)
            gradients.append(gradient)
            losses.append(loss)
            penalties.append(penalty)
            calls += leaves
        amounts = [
            tf.cast(count if share.weight is None else share.weight, tf.float64)
            for share, count in zip(shares, counts, strict=True)
        ]
        portions = tf.unstack(_portions(tf.stack(amounts)))
        own = [_own_mean(share, share.loss) for share in shares]

        def mean(values: Sequence[Any]) -> Any:
            return tf.add_n([tf.cast(p, v.dtype) * v for p, v in zip(portions, values, strict=True)])

        metrics = {name: mean([_own_mean(s, s.metrics[name]) for s in shares]) for name in shares[0].metrics}
        per_replica = tf.stack(own)
        undo = None
        if self.settings.on_nan == "skip" or before:
            undo = lambda: self._undone(before)  # noqa: E731
        with tf.control_dependencies(calls):
            skipped = self.guard.guarded(
                self.guard.watched(shares, per_replica, penalties),
                lambda: self._written(gradients, amounts),
                undo,
            )
        return Outcome(mean(losses), metrics, per_replica, skipped, [s.outputs for s in shares])

    def _own(
        self, i: int, part: Arguments, count: int, num_active: int
    ) -> tuple[Share, list[Any], Any, Any, list[Any]]:
        """What a replica makes of its slice: its share, its gradient, its loss with the penalty and the
        health of that, and what to wait for.
        """
        housed = self.housed
        given = part.prefixed(tf.constant(1.0 / count, tf.float64))
        traced = self.traces.objective(given, i, num_active)
        bindings = housed.bindings(i, traced.captures)
        leaves = traced.on(self.devices[i], given.components(), bindings, replica=i)
        share = traced.pack(leaves)
        gradients = share.gradients
        if share.weight is not None:
            gradients = [divided(gradient, divisor(share.weight)) for gradient in gradients]
        gradients, loss, penalty = self.traces.with_penalty(
            gradients, _own_mean(share, share.loss), self.devices[i], lambda c: housed.bindings(i, c)
        )
        return share, gradients, loss, penalty, [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]

    def _undone(self, before: Sequence[tuple[tf.Variable, Any]]) -> Any:
        """The states as they were before the step, which is skipped, or raises."""
        ops = [variable.assign(value) for variable, value in before]
        if self.settings.on_nan == "skip":
            ops.append(self._skips.assign_add(1))
        with tf.control_dependencies(ops):
            return tf.constant(1)

    def _states(self) -> list[tf.Variable]:
        """The replicas' copies of what the function changes, except random streams, which go on."""
        housed, assigned = self.housed, self.housed.assigned.values()
        states = [state for state in housed.states.values() if not state.random]
        trained = [copy for i in range(len(self.devices)) for copy in housed.own(i, assigned)]
        return [*trained, *(copy for state in states for copy in state.copies)]

    def _written(self, gradients: Sequence[list[Any]], amounts: Sequence[Any]) -> Any:
        """Every replica's update, and a join if it is time for one."""
        ops = []
        for i, mine in enumerate(gradients):
            update = self.traces.update(mine)
            bindings = self.housed.update_bindings(i, update.captures)
            with tf.device(self.devices[i]), tf.name_scope(f"update_{i}"):
                ops.append(update.call(components(mine), update.bound(bindings)))
        with tf.control_dependencies(ops):
            ops += self._counters(len(gradients))
            idle = tf.zeros([len(self.devices) - len(amounts)], tf.float64)
            ops.append(self._seen.assign_add(tf.concat([tf.stack(amounts), idle], axis=0)))
            made = self.guard.made.assign_add(1, read_value=True)
        with tf.control_dependencies([*ops, made]):
            due = tf.equal(self.guard.made.read_value() % self._every, 0)
            return tf.cond(due, self._joined, lambda: tf.constant(0)) if self._every > 1 else self._joined()

    def _counters(self, num_active: int) -> list[Any]:
        """A replica without work counts the step all the same, so that schedules follow global steps.

        What an optimizer makes of such counts goes with them, such as Nadam's product of momenta.
        """
        counters = self._counts
        first = self.housed.own(0, counters)
        idle = range(num_active, len(self.devices))
        return [
            copy.assign(source.read_value())
            for i in idle
            for copy, source in zip(self.housed.own(i, counters), first, strict=True)
        ]

    @cached_property
    def _counts(self) -> list[tf.Variable]:
        """The slots into which no gradient goes."""
        update = self.traces.update(self.traces.specs)
        counted = update.without_gradient()
        return [slot for slot in self.traces.slots if not slot.dtype.is_floating or slot.ref() in counted]

    def _joined(self) -> Any:
        seen = self._seen.read_value()
        ops = self._join.ops(self._held(), _portions(seen))
        ops += self.housed.settle_states(self._mean_state(seen), everywhere=not self._join.centred)
        with tf.control_dependencies(ops), tf.control_dependencies([self._seen.assign(tf.zeros_like(seen))]):
            return tf.constant(0)

    def _mean_state(self, seen: Any) -> Callable[[Sequence[tf.Variable]], Any]:
        """Of moving averages: the mean over the replicas that had work."""
        share = _portions(tf.cast(seen > 0, tf.float64))
        return lambda copies: mean_of([copy.read_value() for copy in copies], tf.unstack(share))

    def leave(self) -> None:
        if self._housed is None:
            return
        known = len(self.housed.states)
        if known not in self._shows:
            self._shows[known] = concrete(self._show)
        self._shows[known]()
        self.remember()

    def _show(self) -> Any:
        """Give the user's variables what stands for the replicas."""
        seen = self._seen.read_value()
        for slot in self.traces.slots:
            copies = [self.housed.own(i, [slot])[0] for i in range(len(self.devices))]
            first, values = copies[0].read_value(), [copy.read_value() for copy in copies]
            if not slot.dtype.is_floating:  # a counter
                slot.assign(first)
                continue
            mean = tf.cast(tf.add_n([wide(value) for value in values]) / len(values), slot.dtype)
            if slot.shape.rank == 0:  # may be a rate, which is the same everywhere: a mean would round it
                mean = tf.where(tf.reduce_all(tf.stack(values) == first), first, mean)
            slot.assign(mean)

        housed = self.housed

        def between() -> Any:
            ops = housed.settle_states(self._mean_state(seen), everywhere=False)
            if not self._join.centred:
                average = self._held().average(_portions(seen))
                ops += [p.assign(value) for p, value in zip(self.parameters, average, strict=True)]
            with tf.control_dependencies(ops):
                return tf.constant(0)

        # Right after a join the user's variables hold its result. What was seen does not tell: it may be
        # examples without any weight, while momentum or a penalty moved the replicas.
        joined = tf.equal(self.guard.made.read_value() % self._every, 0)
        return tf.cond(joined, lambda: tf.constant(0), between)

    def remember(self) -> None:
        """What the user's variables hold now is what the replicas stand for."""
        self._shown = [variable.read_value() for variable in self._users()]

    def _users(self) -> list[tf.Variable]:
        states = [state.original for state in self.housed.states.values()]
        return [*self.parameters, *self.traces.slots, *states]

    def enter(self) -> None:
        """What the user assigned to a variable, all replicas take; the others stay with what they have."""
        if self._housed is None:
            return
        users, shown = self._users(), self._shown or []
        pairs = zip(users, shown, strict=False)
        assigned = {user.ref() for user, value in pairs if not equal(user.read_value(), value)}
        self.housed.refresh(but=frozenset(user.ref() for user in users) - assigned)
        self.housed.restore_states(only=assigned)
        self._join.refresh(assigned)

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `Resumable`): every replica's own variables too."""
        self.leave()
        kept = super().state()
        kept_by_joins = self._join.kept()
        starts = dict(zip((v.ref() for v in kept_by_joins), self.parameters, strict=False))
        joins = {f"join/{name}": Item(v, v, starts.get(v.ref())) for name, v in named(kept_by_joins).items()}
        joins["skips"] = Item(self._skips, self._skips)
        seen = tuple(tf.Variable(amount, trainable=False) for amount in tf.unstack(self._seen))
        return SavedState(
            kept.common | joins, {**kept.own, **self._copies(), SEEN: seen}, kept.random, kept.lost
        )

    def _copies(self) -> dict[str, tuple[tf.Variable, ...]]:
        """By name, what each replica has for itself and is not random."""
        replicas = range(len(self.devices))
        variables = {
            **{f"parameters/{name}": v for name, v in named(self.parameters).items()},
            **{f"optimizer/{name}": v for name, v in named(self.traces.slots).items()},
        }
        copies = {
            name: tuple(self.housed.own(i, [variable])[0] for i in replicas)
            for name, variable in variables.items()
        }
        averaged = {s.original.ref(): s.copies for s in self.housed.states.values() if s.averaged}
        originals = named([ref.deref() for ref in averaged])
        states = {f"states/{name}": averaged[v.ref()] for name, v in originals.items()}
        return copies | states | bases(self.housed)

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step: replicas as they were, or on another number of devices from their mean."""
        super().resume(own)
        seen = own.get(SEEN, ())
        if len(seen) == len(self.devices):
            for name, copies in self._copies().items():
                for copy, value in zip(copies, own[name], strict=True):
                    copy.assign(value)
            self._seen.assign(tf.stack(seen))
        else:
            self._seen.assign(tf.zeros_like(self._seen))
            warnings.warn(
                f"Saved {f'on {len(seen)} devices' if seen else 'in another mode'}, it goes on on "
                f"{len(self.devices)}: the optimizer state of "
                "every replica starts again, from the mean of those that were saved.",
                stacklevel=2,
            )
        self.remember()

    def next_join(self, step: int) -> int:
        """The replicas agree after a join. Joins count updates, so a step that was skipped puts them off."""
        skips = int(self._skips)
        return skips - (skips - step) // self._every * self._every

    def links(self) -> Links:
        """Parameters to device 0 and back, once in so many steps."""
        specs = [tf.TensorSpec(p.shape, p.dtype) for p in self.parameters]
        up = traffic([specs] * len(self.devices), self.settings.order).links
        pairs = {(self.devices[i], self.devices[j]): size / self._every for (i, j), size in up.items()}
        return pairs | {(target, source): size for (source, target), size in pairs.items()}


def _accumulating(optimizer: Any, num_active: int, num_devices: int) -> Iterator[Problem]:
    """An idle replica would apply what it has accumulated at a later step, with what comes meanwhile."""
    for one in inside(optimizer):
        if one.gradient_accumulation_steps:
            rule = f"asks for work for all {num_devices} devices, and this batch has some for {num_active}"
            fix = "Leave such a batch out (drop_remainder=True), or choose cn.Synchronous()"
            yield Problem("gradient_accumulation_steps", one.gradient_accumulation_steps, rule, fix)


def _own_mean(share: Share, value: Any) -> Any:
    """Of a replica's own slice; without weights that is what it was divided by already."""
    return value if share.weight is None else tf.math.divide_no_nan(value, share.weight)


def _portions(amounts: Any) -> Any:
    """Each replica's part of a mean: by what it has seen, or equal parts where nobody has seen anything."""
    total = tf.reduce_sum(amounts)
    equal = tf.ones_like(amounts) / tf.cast(tf.size(amounts), amounts.dtype)
    return tf.where(total == 0, equal, amounts / divisor(total))
