"""What happens at `cn.LocalSGD(20, across="machines")`: machines train by themselves, then are joined.

Inside a machine training is synchronous, on the machine's rows of every batch. After so many steps the
machines' parameters are averaged, by the examples that each has seen since the last join; an outer optimizer
may treat what the average has moved by as a gradient. Optimizers stay the machines' own, until a save.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.engine.protocols import Outcome, Settings
from colonnade.run.engine.reached import collected
from colonnade.run.engine.traces import Traces
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.machines.collective import HOST
from colonnade.run.machines.compression import compressed, num_words, restored
from colonnade.run.memory.estimate import Memory
from colonnade.run.step.objective import Objective
from colonnade.run.sync.averaging import Averaged
from colonnade.run.sync.lockstep import Lockstep
from colonnade.run.sync.same_training import same_training, same_values
from colonnade.run.sync.workers import Workers
from colonnade.run.trace.concrete import concrete
from colonnade.run.variables.aggregation import rule_of, wide
from colonnade.run.variables.homes import Homes, copy_of
from colonnade.run.variables.saved_state import Item, SavedState, named

SAVED = "machine_joins/"  # in a checkpoint; other modes have no use for it, and none of theirs is used here


class MachineJoins(Lockstep):
    """Lockstep on each machine, with a join of the machines every so many steps.

    Args:
        settings: what to train, and how; of machines that work by themselves (`Peers.by_themselves`).
        traces, workers: as for `Lockstep`.
        every: steps between joins.
        join: what becomes of the average.
        compress: how what parameters have moved by travels.
    """

    def __init__(
        self,
        settings: Settings,
        traces: Traces,
        workers: Workers,
        *,
        every: int,
        join: Averaged,
        compress: str | None,
    ) -> None:
        super().__init__(settings, traces, workers)
        self.others = replace(settings.peers, apart=False)  # the same machines, together
        self._every, self._join, self._compress = every, join, compress
        self._starts: list[tf.Variable] = []  # the parameters after the last join
        self._met = 0  # the step after which all machines had the same of everything
        self._joined_at = 0  # the step of the last join that was not due
        self._functions: dict[str, Any] = {}
        with tf.device(HOST):
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps")
            self._seen = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="seen")

    def _own(self, batch: Arguments) -> Arguments:
        """This machine's rows of a batch."""
        if not self.others.several:
            return batch
        rows = batch.size("the batch") or 0
        counts = sizes(rows, self.others.total)
        check("the batch", self._too_few(rows))
        before, own = sum(counts[: self.others.first]), sum(self.others.own(counts))
        return batch.parts([before, own, rows - before - own])[1]

    def _too_few(self, rows: int) -> Iterator[Problem]:
        last = self.others.total - len(self.others.devices[-1])
        if rows <= last:
            rule = (
                f"leaves a machine without an example: there are {self.others.total} devices on all machines"
            )
            yield Problem("batch", f"{rows} rows", rule, f"Take batches of {self.others.total} rows or more")

    def key(self, batch: Arguments) -> Hashable:
        return batch.key(), super().key(self._own(batch))

    def memory(self, batch: Arguments) -> Memory:
        return super().memory(self._own(batch))

    def outcome_spec(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        return super().outcome_spec(self._own(batch))

    def house(self) -> Homes:
        self._join.settle(self.parameters, self.devices[0])
        if self._compress is not None:
            self._starts = [copy_of(parameter, HOST) for parameter in self.parameters]
        return super().house()

    def prepare(self, batch: Arguments) -> None:
        begun = self._housed is not None
        own = self._own(batch)
        super().prepare(own)
        if not begun and self.others.several:
            counts = sizes(batch.size("the batch") or 0, self.others.total)
            same_training(self.others, batch, counts, self.traces, alike=False)
            same_values(self.others, self.housed, "the first step")

    def refused(self, traces: Sequence[Objective]) -> Iterator[Problem]:
        yield from super().refused(traces)
        for variable in traces[0].written:
            if rule_of(variable) == "sum":
                rule = "is a sum over replicas, which machines that train by themselves do not have"
                yield Problem("variable", variable.name, rule, "Use cn.Synchronous()")

    def step(self, batch: Arguments) -> Outcome:
        own = self._own(batch)
        with collected() as effects:
            outcome = super().step(own)
        rows = tf.constant(float(own.size("the batch") or 0), tf.float64)
        with tf.control_dependencies(effects), tf.device(HOST):
            made = 1 - tf.cast(outcome.skipped, tf.float64)
            seen = self._seen.assign_add(rows * made, read_value=False)
            count = self._steps.assign_add(1, read_value=True)
        with tf.control_dependencies([seen]):
            due = tf.equal(count % self._every, 0)
            tf.cond(due, self._joined, lambda: tf.constant(0))
        return outcome

    def _joined(self) -> Any:
        """The graph of a join; the same on all machines, whatever each has seen."""
        ops = self._join.ops(self, self._seen.read_value())  # type: ignore[arg-type]
        ops += self._states()
        with tf.control_dependencies(ops), tf.device(HOST):
            done = self._seen.assign(0.0)
        with tf.control_dependencies([done]):
            return tf.constant(0)

    def average(self, seen: Any) -> list[Any]:
        """The parameters, averaged over the machines by what each has seen; for the join."""
        values = [self.housed.current(parameter).read_value() for parameter in self.parameters]
        if not self.others.several:
            return values
        if self._compress is None:
            *sums, total = self.others.sum([*(wide(v) * tf.cast(seen, wide(v).dtype) for v in values), seen])
            return [
                tf.where(total == 0, v, tf.cast(s / tf.cast(total, s.dtype), v.dtype))
                for v, s in zip(values, sums, strict=True)
            ]
        starts = [start.read_value() for start in self._starts]
        moved = [tf.cast(v - s, tf.float32) for v, s in zip(values, starts, strict=True)]
        average = self._average_of_moved(tf.concat([tf.reshape(m, [-1]) for m in moved], axis=0), seen)
        parts = tf.split(average, [m.shape.num_elements() for m in moved])
        return [s + tf.cast(tf.reshape(p, s.shape), s.dtype) for s, p in zip(starts, parts, strict=True)]

    def _average_of_moved(self, moved: Any, seen: Any) -> Any:
        """The average over the machines of a vector, sent in fewer bytes: all read the same of all."""
        assert self.others.collective is not None
        size = moved.shape[0]
        amount = tf.bitcast(tf.reshape(tf.cast(seen, tf.float32), [1]), tf.int32)
        words = tf.concat([compressed(moved, self._compress), amount], axis=0)
        every = self.others.collective.each(tf.ensure_shape(words, [num_words(size, self._compress) + 1]))
        amounts = tf.bitcast(every[:, -1], tf.float32)
        parts = [restored(row, size, self._compress) for row in tf.unstack(every[:, :-1])]
        sums = tf.add_n([part * amount for part, amount in zip(parts, tf.unstack(amounts), strict=True)])
        return tf.math.divide_no_nan(sums, tf.reduce_sum(amounts))

    def assigned(self, values: Sequence[Any]) -> list[Any]:
        """Ops that give all copies of the parameters these values; for the join."""
        ops = [s.assign(value) for s, value in zip(self._starts, values, strict=bool(self._starts))]
        for parameter, value in zip(self.parameters, values, strict=True):
            ops += [holder.assign(value) for holder in self.housed.holders(parameter)]
        return ops

    def _states(self) -> list[Any]:
        """Ops that average moving averages over the machines; of what has no mean, the first one's counts."""
        states = self.housed.shared_states() if self.others.several else []
        if not states:
            return []
        num, first = len(self.others.devices), self.others.is_first
        values = [state.original.read_value() for state in states]
        means = [rule_of(state.original) == "mean" for state in states]
        own = [v if mean or first else tf.zeros_like(v) for v, mean in zip(values, means, strict=True)]
        ops = []
        for state, total, mean in zip(states, self.others.sum(own), means, strict=True):
            value = total / num if mean else total
            ops += [variable.assign(value) for variable in (state.original, *state.copied)]
        return ops

    def join_now(self) -> None:
        """Join the machines, if they have made steps since they were joined."""
        step = int(self._steps)
        if self._housed is None or step % self._every == 0 or step == self._joined_at:
            return
        self._joined_at = step
        self._call("join", self._joined)

    def end_fit(self) -> None:
        self.join_now()

    def enter(self) -> None:
        super().enter()
        if self._housed is not None and float(self._seen) == 0:
            # Right after a join the user's variables are what it came to, unless he assigned to them.
            self._join.refresh({parameter.ref() for parameter in self.parameters})
            for start, parameter in zip(self._starts, self.parameters, strict=bool(self._starts)):
                start.assign(parameter)

    def state(self) -> SavedState:
        """What a checkpoint keeps: one state of all machines, whose optimizers are averaged for it."""
        if self._housed is not None and self.others.several and int(self._steps) != self._met:
            self.join_now()
            self._call("optimizers", self._optimizers)
            self._met = int(self._steps)
        kept = super().state()
        own = [*self._join.kept(), *self._starts]
        joins = {f"{SAVED}{name}": Item(v, v) for name, v in named(own).items()}
        joins[f"{SAVED}steps"] = Item(self._steps, self._steps)
        return replace(kept, common=kept.common | joins)

    def _optimizers(self) -> Any:
        """The graph that averages the optimizers' variables; counters are those of the first machine."""
        slots = [self.housed.current(slot) for slot in self.traces.slots]
        floats, first = [slot.dtype.is_floating for slot in slots], self.others.is_first
        values = [slot.read_value() for slot in slots]
        own = [v if mean or first else tf.zeros_like(v) for v, mean in zip(values, floats, strict=True)]
        for slot, total, mean in zip(self.traces.slots, self.others.sum(own), floats, strict=True):
            value = total / len(self.others.devices) if mean else total
            for holder in self.housed.holders(slot):
                holder.assign(value)
        return tf.constant(0)

    def _call(self, name: str, graph: Any) -> None:
        if name not in self._functions:
            self._functions[name] = concrete(graph)
        with self.others.stepping(), self.calling(lambda: (0, False), CallPace()):
            self._functions[name]()

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        super().resume(own)
        self._met = self._joined_at = int(self._steps)

    def next_join(self, step: int) -> int:
        return -(-step // self._every) * self._every

    def culprit(self, replica: int, bad: Sequence[str]) -> str:
        if not self.others.several:
            return super().culprit(replica, bad)
        return self.others.every_device()[self.others.first + replica]
