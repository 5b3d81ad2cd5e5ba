"""The loss with its gradient averaged over the batch, the update, and the guard that stops at a NaN.

Engines differ in which variables a replica has and in when updates are made. What they have in common
is here: traces for slices of every size, sums over slices, and the guard against what is not finite.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem, check
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.protocols import Settings
from colonnade.run.memory.estimate import Memory, limited, misfits
from colonnade.run.step.objective import Objective, Share, stacked, vital
from colonnade.run.step.untrainable import complex_numbers, without_path
from colonnade.run.step.update import Update, as_keras
from colonnade.run.step.whole_variables import looking
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.keras_owner import keras_variable
from colonnade.run.trace.sync_cut import problems
from colonnade.run.trace.traced import Traced, Voice, trace
from colonnade.run.variables.aggregation import meaningless

# Begins the message of the assertion that guards an update.
NOT_FINITE = "colonnade: a loss or gradient is not finite"


class Descent:
    """The traces of a loss function, of its penalty and of the optimizer's update.

    Args:
        settings: what to train, and how.
        timed: whether replicas tell how long they took.
        examined: whether a trace looks at its gradients, or whoever adds up several does.
    """

    def __init__(self, settings: Settings, *, timed: bool = False, examined: bool = True) -> None:
        self.optimizer = settings.optimizer
        self._settings, self._timed, self._examined = settings, timed, examined
        self._objectives: dict[Hashable, Objective] = {}
        self._unscaled: dict[
            tuple[Hashable, Voice | None], Arguments
        ] = {}  # traced before the optimizer had its variables
        self._of_one: dict[Hashable, Objective] = {}  # whole batches, to look at; no replica runs them
        self._updates: dict[Hashable, Update] = {}
        self._penalty_trace: Any = None
        self._scale_trace: Any = None  # what a loss is multiplied by, where that is a variable
        self._penalized: list[str] = []  # what the health of the penalty is of: itself, and variables
        self.parameters: list[tf.Variable] = []
        self.slots: list[tf.Variable] = []
        with tf.device("/device:CPU:0"):
            self.made = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    @property
    def objectives(self) -> list[Objective]:
        return list(self._objectives.values())

    def prepare(
        self,
        batch: Arguments,
        counts: Sequence[int],
        refused: Callable[[Sequence[Objective]], Iterable[Problem]] = problems,
        memory: Callable[[Objective, Arguments, int], Memory] | None = None,
    ) -> None:
        """Trace the loss for these slices, and make the optimizer's variables.

        `memory` estimates what each device needs, from the largest slice's trace, the slice, and how many
        there are.

        Must run in eager code, before a step is built: variables are made here.
        """
        traces = [self.objective(part, i, len(counts)) for i, part in enumerate(specs(batch, counts))]
        check("the loss function", refused(traces))
        if memory is not None and limited(self._settings.devices):
            check("this training", misfits(self.estimate(batch, counts, refused, memory)))
        self.build()

    def estimate(
        self,
        batch: Arguments,
        counts: Sequence[int],
        refused: Callable[[Sequence[Objective]], Iterable[Problem]],
        memory: Callable[[Objective, Arguments, int], Memory],
    ) -> Memory:
        """What each device needs for a step on these slices."""
        largest = self.objective(specs(batch, counts)[0], 0, len(counts))
        check("the loss function", refused([largest]))
        return memory(largest, with_factor(with_zeros(batch), counts)[0], len(counts))

    def build(self) -> None:
        """Make the optimizer's variables, for the parameters of what was traced."""
        if self.parameters:
            return
        parameters = self.objectives[0].parameters
        if not parameters:
            rule, fix = "uses no trainable variable", "Compute it from the variables to be trained"
            raise InvalidArgument("Trainer()", [Problem("loss", self._settings.loss, rule, fix)])
        if self._settings.penalty is not None:
            self._penalty_trace = _penalty_trace(self._settings.penalty, parameters)
            self._penalized = ["the penalty", *(parameter.name for parameter in parameters)]
        check("this training", looking(self.optimizer, parameters))
        if not self.optimizer.built:
            check("Trainer()", without_path(self.optimizer, parameters))
            self.optimizer.build(as_keras(parameters))
            self._trace_scaled()
        if self._has_own_scale:
            scale = trace(unconverted(lambda: self.optimizer.scale_loss(tf.constant(1.0))))
            self._scale_trace = scale if scale.captures else None
        self.parameters = parameters
        self.slots = [getattr(v, "value", v) for v in self.optimizer.variables]

    @property
    def _has_own_scale(self) -> bool:
        """Whether the optimizer scales a loss by other than a number that never changes."""
        return type(self.optimizer).scale_loss is not keras.optimizers.Optimizer.scale_loss

    def _trace_scaled(self) -> None:
        """Trace again what an optimizer scales by a variable of its own, which is there only now.

        The first traces, which found the parameters, hold the initial scale as a constant.
        """
        for (key, voice), part in self._unscaled.items():
            self._objectives[key, voice] = self._traced(part, voice)
        self._unscaled = {}

    def objective(self, part: Arguments, replica: int, num_replicas: int) -> Objective:
        """One trace for slices of one shape; one each where replicas speak or draw seeded numbers."""
        common = self.cached(part, None)
        voice = common.voice(replica, self._settings.devices[replica])
        return common if num_replicas == 1 or voice is None else self.cached(part, voice)

    def of_one_device(self, batch: Arguments) -> Objective:
        """The trace of a whole batch, as one device makes it."""
        (part,) = specs(batch, [batch.size("the batch") or 0])
        key = (part.key(), None)
        if key not in self._objectives and key not in self._of_one:
            self._of_one[key] = self._traced(part, None)
        return self._objectives.get(key) or self._of_one[key]

    def cached(self, part: Arguments, voice: Voice | None) -> Objective:
        """The trace for slices like this one, as this replica speaks."""
        key = (part.key(), voice)
        if key not in self._objectives:
            self._objectives[key] = self._traced(part, voice)
            if self._has_own_scale and not self.optimizer.built:
                self._unscaled[key] = part
        return self._objectives[key]

    def _traced(self, part: Arguments, voice: Voice | None) -> Objective:
        traced = Objective(
            self._settings.loss,
            part,
            self.optimizer.scale_loss,
            voice,
            self._settings.trainable or not_frozen,
            timed=self._timed,
            examined=self._examined,
        )
        check("the loss function", [*complex_numbers(traced), *self._used_at_times(traced)])
        check("the loss function", meaningless(traced, len(self._settings.devices)))
        return traced

    def _used_at_times(self, traced: Objective) -> Iterator[Problem]:
        """Parameters that the function uses in this trace and not in the first one, or the other way."""
        first = next(iter(self._objectives.values()), traced)
        one, other = ({p.ref(): p for p in found.parameters} for found in (first, traced))
        for ref in [ref for ref in one | other if ref not in one or ref not in other]:
            rule = "is trained by some batches or slices, and not by those of another size or kind"
            fix = "Use it for every slice, if only times zero, and freeze layers before the first step"
            yield Problem("variable", (one | other)[ref].name, rule, fix)

    def told(self, batch: Arguments, counts: Sequence[int]) -> tuple[int, Any, dict[str, Any]]:
        """Of a step on such slices: how many replicas work, the dtype of the loss, those of the metrics."""
        share = self.objective(specs(batch, counts)[0], 0, len(counts)).structure
        return len(counts), share.loss.dtype, {name: value.dtype for name, value in share.metrics.items()}

    @property
    def specs(self) -> list[Any]:
        """For each parameter the spec of its gradient."""
        return gradient_specs(self.objectives[0].structure.gradients, self.parameters)

    def update(self, gradients: Sequence[Any]) -> Update:
        """The update for gradients like these, or for specs of them."""
        key = tuple(gradient_specs(gradients, self.parameters))
        if key not in self._updates:
            self._updates[key] = Update(self.optimizer, self.parameters, key)
        return self._updates[key]

    def with_penalty(
        self,
        gradients: list[Any],
        loss: Any,
        device: str,
        bindings: Callable[[Any], Mapping[Any, Any]],
        scaled: Callable[[Any], Any] | None = None,
    ) -> tuple[list[Any], Any, Any]:
        """Gradients and loss with the penalty, computed on `device` from the variables bound there.

        `scaled` multiplies as the loss was; by default as the optimizer does now. The third result is the
        health of the penalty: numbers that must be finite, for its value and for each of its gradients;
        none where there is no penalty.
        """
        if self._penalty_trace is None:
            return gradients, loss, tf.zeros([0])
        value, *extra = self._penalty_trace.on(device, [], bindings(self._penalty_trace.captures))
        # A penalty is part of what the optimizer unscales, like the loss.
        scaled = scaled or self._scaled(device, bindings)
        added = [
            _plus(g, scaled(e) if e is not None else None) for g, e in zip(gradients, extra, strict=True)
        ]
        # Before it is scaled: what overflows then is for loss scaling to find.
        health = stacked([vital(part) for part in (value, *extra)])
        return added, loss + tf.cast(value, loss.dtype), health

    def _scaled(self, device: str, bindings: Callable[[Any], Mapping[Any, Any]]) -> Callable[[Any], Any]:
        """Multiplies as the optimizer scales a loss, by the scale that is bound on `device`."""
        if self._scale_trace is None:
            return lambda gradient: _each(self.optimizer.scale_loss, gradient)
        (factor,) = self._scale_trace.on(device, [], bindings(self._scale_trace.captures))
        return lambda gradient: divided(gradient, 1 / factor)

    @property
    def penalty(self) -> Traced | None:
        """The trace of the penalty, if there is one."""
        return self._penalty_trace

    def lost(self) -> list[str]:
        """What a checkpoint cannot keep, in words."""
        if not any(objective.repeats for objective in self.objectives):
            return []
        return ["the loss draws numbers by seeded tf.random ops, whose state TensorFlow does not give out"]

    def watched(self, shares: Sequence[Share], losses: Any, penalties: Sequence[Any]) -> Any:
        """A row per replica of what must be finite: its loss, numbers for its gradients and for its penalty.

        Where the penalty is computed once, for all replicas, it is in the row of the first.
        """
        health = [self.health(share) for share in shares]
        penalties = [*penalties, *[tf.zeros_like(penalties[0])] * (len(shares) - len(penalties))]
        columns = [losses[:, None], tf.stack(health), tf.stack(penalties)]
        return tf.concat([tf.cast(column, losses.dtype) for column in columns], axis=1)

    def health(self, share: Share) -> Any:
        """A number for each gradient that must be finite."""
        if hasattr(self.optimizer, "dynamic_scale"):  # loss scaling looks for infinities itself
            return tf.zeros([0])
        return share.health

    def guarded(self, watched: Any, write: Callable[[], Any], undo: Callable[[], Any] | None) -> Any:
        """Write, unless something is not finite: 1 if the update was left out, else 0.

        `undo` takes back what the replicas wrote already. It is needed to skip; without it the guard
        raises before anything is written.
        """
        on_nan = self._settings.on_nan
        if on_nan is None:
            return write()
        healthy = tf.reduce_all(tf.math.is_finite(watched))
        said = [NOT_FINITE, self.made.read_value(), tf.shape(watched), watched]
        if undo is None:
            with tf.control_dependencies([tf.debugging.Assert(healthy, said, summarize=-1)]):
                return write()
        left_out = tf.cond(healthy, write, undo)
        if on_nan == "skip":
            return left_out
        with tf.control_dependencies([left_out]):
            asserted = tf.debugging.Assert(healthy, said, summarize=-1)
        with tf.control_dependencies([asserted]):
            return tf.identity(left_out)

    def explained(
        self,
        error: tf.errors.InvalidArgumentError,
        culprit: Callable[[int, Sequence[str]], str] | None = None,
    ) -> Exception:
        """If the guard of the update spoke: which device, step and variable; else the error as it is.

        `culprit` tells the device from the replica and the names of the variables with bad gradients.
        """
        found = re.search(rf"{NOT_FINITE}\] \[(\d+)\] \[(\d+) (\d+)\] \[(.*?)\]\s*\n", error.message, re.S)
        if not found:
            return error
        step, rows, columns = int(found[1]) + 1, int(found[2]), int(found[3])
        table = np.array([float(n) for n in re.findall(r"[-+.\w]+", found[4])]).reshape(rows, columns)
        replica = int(np.argwhere(~np.isfinite(table))[0][0])
        device = (
            self._settings.devices[replica] if culprit is None else culprit(replica, self.bad(table[replica]))
        )
        return self.not_finite(device, step, table[replica])

    def bad(self, row: np.ndarray) -> list[str]:
        """The variables whose gradients are not finite in a row of `watched`."""
        own, penalty = np.split(row[1:], [len(row) - 1 - len(self._penalized)])
        names = [parameter.name for parameter in self.parameters]
        columns = [*zip(names, own, strict=False), *zip(self._penalized[1:], penalty[1:], strict=True)]
        return [name for name, value in columns if not np.isfinite(value)]

    def not_finite(
        self, device: str, step: int, row: np.ndarray, applied: str = "No update was applied."
    ) -> NotFinite:
        """What to raise for a row of `watched` that is not finite; `applied` says what came of it."""
        bad = self.bad(row)
        first = f"; first bad gradient: {bad[0]}" if bad else ""
        what, look = "the loss", "the batch and the learning rate"
        if np.isfinite(row[0]):
            what = "a gradient"
        if np.isfinite(row[: len(row) - len(self._penalized)]).all():
            what, look = "the penalty, or its gradient,", "what the penalty computes"
        return NotFinite(
            f"{what} is not finite on {device} at step {step}{first}. "
            f'{applied} Look at {look}, or choose on_nan="skip".',
            device=device,
            step=step,
            variable=bad[0] if bad else None,
        )


def not_frozen(used: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Without the variables of Keras layers that were set to `trainable = False`.

    A tf.Variable does not know of that; only the Keras variable around it does.
    """
    return [variable for variable in used if (known := keras_variable(variable)) is None or known.trainable]


def specs(batch: Arguments, counts: Sequence[int]) -> list[Arguments]:
    """What `with_factor` gives, as far as is needed to trace with."""
    return [batch.resized(count).prefixed(tf.TensorSpec([], tf.float64)) for count in counts]


def with_factor(batch: Arguments, counts: Sequence[int]) -> list[Arguments]:
    """The slices of a batch, each behind one over the size of the whole batch."""
    factor = tf.constant(1.0 / sum(counts), tf.float64)
    return [part.prefixed(factor) for part in batch.parts(counts)]


def divisor(weight: Any) -> Any:
    """What to divide a sum of weighted values by: where nothing has a weight, their mean is 0."""
    return tf.where(weight == 0, tf.ones_like(weight), weight)


def divided(gradient: Any, weight: Any) -> Any:
    """A gradient, dense or sparse or None, over a number."""
    return None if gradient is None else _each(lambda g: g / tf.cast(weight, g.dtype), gradient)


def _each(fn: Callable[[Any], Any], gradient: Any) -> Any:
    """A function of the values of a gradient, dense or sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)


def gradient_specs(gradients: Sequence[Any], parameters: Sequence[tf.Variable]) -> list[Any]:
    """Specs that are the same wherever the gradients come from, so that there is one trace of the update.

    The shape is the parameter's: a call hides the static shape of what it returns. The rows of a
    sparse gradient vary.
    """
    return [
        _spec(gradient, parameter.shape) for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


def components(gradients: Sequence[Any]) -> list[Any]:
    """The plain tensors of the gradients that there are."""
    return tf.nest.flatten([g for g in gradients if g is not None], expand_composites=True)


def _penalty_trace(penalty: Callable[[], Any], parameters: Sequence[tf.Variable]) -> Any:
    def with_gradients() -> list[Any]:
        with tf.GradientTape() as tape:
            value = penalty()
        return [value, *tape.gradient(value, parameters)]

    return trace(with_gradients)


def _plus(gradient: Any, extra: Any) -> Any:
    if gradient is None or extra is None:
        return gradient if extra is None else extra
    return tf.convert_to_tensor(gradient) + tf.convert_to_tensor(extra)


def _spec(gradient: Any, shape: tf.TensorShape) -> Any:
    if gradient is None or isinstance(gradient, tf.IndexedSlicesSpec | tf.TensorSpec):
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlicesSpec(
            shape=shape,
            dtype=gradient.dtype,
            indices_dtype=gradient.indices.dtype,
            dense_shape_dtype=None if gradient.dense_shape is None else gradient.dense_shape.dtype,
            indices_shape=[None],
        )
    return tf.TensorSpec(shape, gradient.dtype)
