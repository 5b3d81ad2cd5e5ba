"""Training in lockstep: every step, all replicas compute, and the model moves once."""

import gc
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem, check
from colonnade.run.objective import Objective, Share
from colonnade.run.reduce import Order, bucket_for, reduce, spread, star
from colonnade.run.residence import Residence
from colonnade.run.segments import problems, together
from colonnade.run.split import Arguments, sizes
from colonnade.run.trace import Voice, trace
from colonnade.run.update import Update

# Begins the message of the assertion that guards an update.
NOT_FINITE = "colonnade: a loss or gradient is not finite"


@dataclass(frozen=True)
class Synchronous:
    """One update per step, with the mean gradient over the global batch."""


@dataclass(frozen=True)
class Outcome:
    """What a step tells: means over the global batch, and the loss of each replica's own slice."""

    loss: Any
    metrics: dict[str, Any]
    replicas: Any  # the mean loss of each replica's slice
    skipped: Any  # 1 if the update was left out because of a NaN, else 0
    outputs: Any = None  # a list per replica of what else the function returned


class Lockstep:
    """Builds the graph of a synchronous step for batches of any size.

    The order in a step: every replica computes losses and gradients; the gradients are summed along
    the order that the topology asks for; the update waits for all replicas, because they read what it
    writes; and nothing is written at all if a gradient is not finite.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        optimizer: Any,
        devices: Sequence[str],
        *,
        mode: str,
        penalty: Callable[[], Any] | None,
        on_nan: str | None,
        order: Order,
        trainable: Callable[[Sequence[tf.Variable]], Sequence[tf.Variable]] | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.optimizer = optimizer
        self._loss, self._penalty, self._mode, self._on_nan = loss, penalty, mode, on_nan
        self._order = order
        self._trainable = trainable
        self._objectives: dict[Hashable, Objective] = {}
        self._updates: dict[Hashable, Any] = {}
        self._penalty_trace: Any = None
        self._owners: dict[Any, int] = {}  # by the ref of a variable, where variables are partitioned
        self.residence: Residence | None = None
        self.parameters: list[tf.Variable] = []
        with tf.device("/device:CPU:0"):
            self.made = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    def prepare(self, batch: Arguments) -> None:
        """Trace the loss, make the optimizer's variables, and find a home for everything.

        Must run in eager code, before a step is built: variables are made here.
        """
        total = batch.size("the batch")
        assert total is not None
        counts = sizes(total, len(self.devices))
        traces = [self._objective(part, i, len(counts)) for i, part in enumerate(_specs(batch, counts))]
        check("the loss function", problems(traces))
        first = next(iter(self._objectives.values()))
        if self.residence is None:
            self._settle(first)
        assert self.residence is not None
        for objective in self._objectives.values():
            for i in range(len(self.devices)):
                self.residence.bindings(i, objective.captures)

    def _settle(self, objective: Objective) -> None:
        self.parameters = objective.parameters
        if not self.parameters:
            rule, fix = "uses no trainable variable", "Compute it from the variables to be trained"
            raise InvalidArgument("Trainer()", [Problem("loss", self._loss, rule, fix)])
        if self._penalty is not None:
            self._penalty_trace = _penalty_trace(self._penalty, self.parameters)
        if not self.optimizer.built:
            self.optimizer.build(self.parameters)
        gradients = _gradient_specs(objective.structure.gradients, self.parameters)
        slots = [getattr(v, "value", v) for v in self.optimizer.variables]
        self.residence = Residence(self._mode, self.devices, self.parameters, slots)
        update = self._update(gradients)
        if self._mode == "partitioned":
            self._owners = update.owners(len(self.devices))
            self.residence.deal({slot.ref(): 0 for slot in slots} | self._owners)
            update.place(self._owners, self.devices)

    def _objective(self, part: Arguments, replica: int, num_replicas: int) -> Objective:
        """One trace for slices of one shape; one each where replicas speak or draw seeded numbers."""
        common = self._cached(part, None)
        if num_replicas == 1 or not (common.repeats or common.speaks):
            return common
        return self._cached(part, Voice(replica, self.devices[replica], common.repeats))

    def _cached(self, part: Arguments, voice: Voice | None) -> Objective:
        key = (part.key(), voice)
        if key not in self._objectives:
            self._objectives[key] = Objective(
                self._loss, part, self.optimizer.scale_loss, voice, self._trainable or not_frozen
            )
        return self._objectives[key]

    def step(self, batch: Arguments) -> Outcome:
        """The graph of one step on a batch of known size; call it inside a tf.function."""
        assert self.residence is not None
        total = batch.size("the batch")
        assert total is not None
        counts = sizes(total, len(self.devices))
        order = self._order if len(counts) == len(self.devices) else star(len(counts))
        parts = _with_factor(batch, counts)
        traces = [self._objective(part, i, len(counts)) for i, part in enumerate(parts)]
        bindings = [self.residence.bindings(i, traced.captures) for i, traced in enumerate(traces)]
        components = [part.components() for part in parts]
        results = together(traces, self.devices[: len(counts)], components, bindings, order)
        shares = [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]
        calls = [leaf for leaves in results for leaf in leaves if isinstance(leaf, tf.Tensor)]
        working = self.devices[: len(counts)]
        gradients = reduce([s.gradients for s in shares], working, order, bucket_bytes=bucket_for(working))
        loss, metrics, weight = _summed(shares)
        if weight is not None:
            gradients = [g if g is None else _divided(g, weight) for g in gradients]
        gradients, loss = self._with_penalty(gradients, loss)
        per_replica = tf.stack([_own_mean(s, count, total) for s, count in zip(shares, counts, strict=True)])
        with tf.control_dependencies(calls):
            skipped = self._apply(gradients, shares, per_replica, order)
        return Outcome(loss, metrics, per_replica, skipped, [s.outputs for s in shares])

    def told(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of a step on such a batch: how many replicas work, the dtype of the loss, those of the metrics."""
        counts = sizes(batch.size("the batch") or 0, len(self.devices))
        share = self._objective(_specs(batch, counts)[0], 0, len(counts)).structure
        return len(counts), share.loss.dtype, {name: value.dtype for name, value in share.metrics.items()}

    def _with_penalty(self, gradients: list[Any], loss: Any) -> tuple[list[Any], Any]:
        if self._penalty_trace is None:
            return gradients, loss
        assert self.residence is not None
        bindings = self.residence.bindings(0, self._penalty_trace.captures)
        value, *extra = self._penalty_trace.on(self.devices[0], [], bindings)
        # A penalty is part of what the optimizer unscales, like the loss.
        added = [
            _plus(g, self.optimizer.scale_loss(e) if e is not None else None)
            for g, e in zip(gradients, extra, strict=True)
        ]
        return added, loss + tf.cast(value, loss.dtype)

    def _apply(self, gradients: list[Any], shares: Sequence[Share], losses: Any, order: Order) -> Any:
        """Update parameters and states, unless something is not finite."""
        if self._on_nan is None:
            return self._written(gradients, len(shares), order, 0)
        health = tf.stack([share.health for share in shares])
        scaled = hasattr(self.optimizer, "dynamic_scale")  # loss scaling looks for infinities itself
        watched = losses if scaled else tf.concat([losses[:, None], tf.cast(health, losses.dtype)], axis=1)
        healthy = tf.reduce_all(tf.math.is_finite(watched))
        if self._on_nan == "skip":
            return tf.cond(healthy, lambda: self._written(gradients, len(shares), order, 0), self._left_out)
        said = [NOT_FINITE, self.made.read_value(), tf.shape(watched), watched]
        with tf.control_dependencies([tf.debugging.Assert(healthy, said, summarize=-1)]):
            return self._written(gradients, len(shares), order, 0)

    def _left_out(self) -> Any:
        """No update: what the replicas made of the states is forgotten too."""
        assert self.residence is not None
        with tf.control_dependencies(self.residence.restore_states()):
            return tf.constant(1)

    def _written(self, gradients: list[Any], num_active: int, order: Order, value: int) -> Any:
        assert self.residence is not None
        update = self._update(_gradient_specs(gradients, self.parameters))
        homes = self.devices if self._mode == "mirrored" else self.devices[:1]
        full = order if len(homes) == num_active else star(len(homes))
        copies = spread(gradients, homes, full) if len(homes) > 1 else [gradients]
        ops = []
        for i, (device, mine) in enumerate(zip(homes, copies, strict=True)):
            components = tf.nest.flatten([g for g in mine if g is not None], expand_composites=True)
            bindings = self.residence.update_bindings(i, update.captures)
            with tf.device(None if self._mode == "partitioned" else device), tf.name_scope(f"update_{i}"):
                handles = [
                    bindings[c.variable.ref()] if c.variable is not None else c.tensor
                    for c in update.captures
                ]
                ops.append(update.call(components, handles))
        ops += [*self.residence.settle_states(num_active), self.made.assign_add(1)]
        with tf.control_dependencies(ops):
            return tf.constant(value)

    def explained(self, error: tf.errors.InvalidArgumentError) -> Exception:
        """If the guard of the update spoke: which device, step and variable; else the error as it is."""
        found = re.search(rf"{NOT_FINITE}\] \[(\d+)\] \[(\d+) (\d+)\] \[(.*?)\]\s*\n", error.message, re.S)
        if not found:
            return error
        step, rows, columns = int(found[1]) + 1, int(found[2]), int(found[3])
        table = np.array([float(n) for n in re.findall(r"[-+.\w]+", found[4])]).reshape(rows, columns)
        replica, column = (int(i) for i in np.argwhere(~np.isfinite(table))[0])
        gradients = next(iter(self._objectives.values())).structure.gradients
        present = [p.name for p, g in zip(self.parameters, gradients, strict=True) if g is not None]
        bad = [
            name for name, value in zip(present, table[replica, 1:], strict=False) if not np.isfinite(value)
        ]
        device = self.devices[replica]
        first = f"; first bad gradient: {bad[0]}" if bad else ""
        return NotFinite(
            f"{'a gradient' if column else 'the loss'} is not finite on {device} at step {step}{first}. "
            'No update was applied. Look at the batch and the learning rate, or choose on_nan="skip".',
            device=device,
            step=step,
            variable=bad[0] if bad else None,
        )

    def _update(self, specs: Sequence[Any]) -> Update:
        key = tuple(specs)
        if key not in self._updates:
            self._updates[key] = Update(self.optimizer, self.parameters, specs)
            if self._mode == "shared" or len(self.devices) == 1:
                self._updates[key].follow()
            if self._owners:  # a penalty makes sparse gradients dense, which is another update
                self._updates[key].place(self._owners, self.devices)
        return self._updates[key]


def not_frozen(used: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Without the variables of Keras layers that were set to `trainable = False`.

    A tf.Variable does not know of that; only the Keras variable around it does, and nothing leads
    from the one to the other, so all Keras variables of the process are looked at.
    """
    known = [v for v in gc.get_objects() if issubclass(type(v), keras.Variable)]
    frozen = {v.value.ref() for v in known if not v.trainable}
    return [variable for variable in used if variable.ref() not in frozen]


def _penalty_trace(penalty: Callable[[], Any], parameters: Sequence[tf.Variable]) -> Any:
    def with_gradients() -> list[Any]:
        with tf.GradientTape() as tape:
            value = penalty()
        return [value, *tape.gradient(value, parameters)]

    return trace(with_gradients)


def _with_factor(batch: Arguments, counts: Sequence[int]) -> list[Arguments]:
    factor = tf.constant(1.0 / sum(counts), tf.float64)
    return [part.prefixed(factor) for part in batch.parts(counts)]


def _specs(batch: Arguments, counts: Sequence[int]) -> list[Arguments]:
    return [batch.resized(count).prefixed(tf.TensorSpec([], tf.float64)) for count in counts]


def _summed(shares: Sequence[Share]) -> tuple[Any, dict[str, Any], Any]:
    loss = tf.add_n([share.loss for share in shares])
    metrics = {name: tf.add_n([share.metrics[name] for share in shares]) for name in shares[0].metrics}
    if shares[0].weight is None:
        return loss, metrics, None
    weight = tf.add_n([share.weight for share in shares])
    return loss / weight, {name: value / weight for name, value in metrics.items()}, weight


def _own_mean(share: Share, count: int, total: int) -> Any:
    return share.loss * (total / count) if share.weight is None else share.loss / share.weight


def _divided(gradient: Any, weight: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values / tf.cast(weight, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(weight, gradient.dtype)


def _plus(gradient: Any, extra: Any) -> Any:
    if gradient is None or extra is None:
        return gradient if extra is None else extra
    return tf.convert_to_tensor(gradient) + tf.convert_to_tensor(extra)


def _gradient_specs(gradients: Sequence[Any], parameters: Sequence[tf.Variable]) -> list[Any]:
    """Specs that are the same wherever the gradients come from, so that there is one trace of the update.

    The shape is the parameter's: a call hides the static shape of what it returns. The rows of a
    sparse gradient vary.
    """
    return [
        _spec(gradient, parameter.shape) for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def _spec(gradient: Any, shape: tf.TensorShape) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlicesSpec(
            shape=shape,
            dtype=gradient.dtype,
            indices_dtype=gradient.indices.dtype,
            dense_shape_dtype=None if gradient.dense_shape is None else gradient.dense_shape.dtype,
            indices_shape=[None],
        )
    return tf.TensorSpec(shape, gradient.dtype)
