"""The loss with its gradient, the penalty and the optimizer's update, each traced once."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import slice_specs, slices
from colonnade.run.engine.penalty import Bound, LossScale, Penalty
from colonnade.run.engine.protocols import Settings
from colonnade.run.memory.estimate import Memory, limited, misfits
from colonnade.run.step.objective import Objective
from colonnade.run.step.untrainable import complex_numbers, overwritten, without_path
from colonnade.run.step.update import Update, as_keras, build
from colonnade.run.step.whole_variables import looking
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.traced import Voice
from colonnade.run.variables.aggregation import meaningless

# What stands in the way of a way of training, told from the traces of its slices.
Refused = Callable[[Sequence[Objective]], Iterable[Problem]]
# Bytes per device, told from the largest slice's trace, the slice, and how many slices there are.
Estimate = Callable[[Objective, Arguments, int], Memory]


class Traces:
    """The traces of a loss function, of its penalty and of the optimizer's update.

    Args:
        settings: what to train, and how.
        timed: whether replicas tell how long they took.
        turning: whether they tell when their forward pass was over.
        examined: whether a trace looks at its gradients, or whoever adds up several does.
    """

    def __init__(
        self, settings: Settings, *, timed: bool = False, turning: bool = False, examined: bool = True
    ) -> None:
        self.optimizer, self.devices = settings.optimizer, settings.devices
        self._num_replicas = settings.num_replicas
        self._settings, self._timed, self._turning, self._examined = settings, timed, turning, examined
        self._objectives: TraceCache[Objective] = TraceCache(
            self._of_replicas, settings.devices, first=settings.peers.first
        )
        # Whole batches, to look at; no replica runs them.
        self._of_one: TraceCache[Objective] = TraceCache(self._traced)
        # What was traced before the optimizer had its variables.
        self._unscaled: list[tuple[Arguments, Voice | None]] = []
        self._updates: dict[Hashable, Update] = {}
        self._fitting: dict[Hashable, int] = {}  # by the kind of a batch, the largest seen to fit memory
        self.penalty: Penalty | None = None
        self._loss_scale: LossScale | None = None
        self.parameters: list[tf.Variable] = []
        self.slots: list[tf.Variable] = []

    @property
    def objectives(self) -> list[Objective]:
        return list(self._objectives)

    def prepare(self, batch: Arguments, counts: Sequence[int], refused: Refused, estimate: Estimate) -> None:
        """Trace the loss for these slices, and make the optimizer's variables.

        Must run in eager code, before a step is built: variables are made here.
        """
        traces = [self.objective(part, i, len(counts)) for i, part in enumerate(slice_specs(batch, counts))]
        check("the loss function", refused(traces))
        if limited(self._settings.devices):
            memory = partial(self.estimated, batch, counts, refused, estimate)
            self.check_memory(batch, max(counts), len(counts), memory)
        self.build()

    def check_memory(
        self, batch: Arguments, largest: int, num_slices: int, memory: Callable[[], Memory]
    ) -> None:
        """Refuse what does not fit; a batch that is no larger than one that fits is not looked at again."""
        kind = (batch.resized(1).key(), num_slices)
        if largest > self._fitting.get(kind, 0):
            check("this training", misfits(memory()))
            self._fitting[kind] = largest

    def estimated(
        self, batch: Arguments, counts: Sequence[int], refused: Refused, estimate: Estimate
    ) -> Memory:
        """What each device needs for a step on these slices."""
        which = counts.index(max(counts))
        largest = self.objective(slice_specs(batch, counts)[which], which, len(counts))
        check("the loss function", refused([largest]))
        return estimate(largest, slices(with_zeros(batch), counts)[which], len(counts))

    def build(self) -> None:
        """Make the optimizer's variables, for the parameters of what was traced."""
        if self.parameters:
            return
        parameters = self.objectives[0].parameters
        if not parameters:
            rule, fix = "uses no trainable variable", "Compute it from the variables to be trained"
            raise InvalidArgument("Trainer()", [Problem("loss", self._settings.loss, rule, fix)])
        if self._settings.penalty is not None:
            self.penalty = Penalty(self._settings.penalty, parameters)
        elif self._settings.optimized is not None and not any(
            gradient is not None for gradient in self.objectives[0].structure.gradients
        ):  # Keras refuses it too
            rule = "are there of no variable: the loss does not depend on what is trained"
            fix = "Compute it from what the model gives, without tf.stop_gradient or whole numbers on the way"
            raise InvalidArgument("this training", [Problem("gradients", None, rule, fix)])
        if self._num_replicas > 1:
            check("this training", overwritten(parameters))
        check("this training", looking(self.optimizer, parameters))
        if not self.optimizer.built:
            check("Trainer()", without_path(self.optimizer, parameters))
            optimized = self._settings.optimized
            if optimized is None:
                self.optimizer.build(as_keras(parameters))
            else:
                build(self.optimizer, optimized())
            if self._has_own_scale:
                # The scale is a variable, which is there only now; the traces hold its first value.
                self._objectives.forget()
                for part, voice in self._unscaled:
                    self._objectives.get(part, voice)
        self._unscaled = []
        if self.penalty is not None:
            self._loss_scale = LossScale(self.optimizer)
        self.parameters = parameters
        listed = [getattr(v, "value", v) for v in self.optimizer.variables]
        self.slots = [*listed, *self._unlisted(listed)]

    def _unlisted(self, slots: Sequence[tf.Variable]) -> list[tf.Variable]:
        """What the update writes and the optimizer does not list.

        Such is Nadam's product of momenta inside a LossScaleOptimizer (Keras 3.15), and what optimizers of
        users' own may have. Without a copy for each device, all devices would write to the same one.
        """
        known = {variable.ref() for variable in [*self.parameters, *slots]}
        written = [
            c.variable for c in self.update(self.specs).captures if c.variable is not None and c.written
        ]
        return [variable for variable in written if variable.ref() not in known]

    @property
    def _has_own_scale(self) -> bool:
        """Whether the optimizer scales a loss by other than a number that never changes."""
        return type(self.optimizer).scale_loss is not keras.optimizers.Optimizer.scale_loss

    def objective(self, part: Arguments, replica: int, num_replicas: int) -> Objective:
        """The trace with which a replica computes its slice."""
        return self._objectives.of_replica(part, replica, num_replicas)

    def of_micro_batch(self, part: Arguments, number: int, num_micro_batches: int) -> Objective:
        """The trace with which a micro-batch goes through a pipeline."""
        return self._objectives.of_micro_batch(part, number, num_micro_batches)

    def of_one_device(self, batch: Arguments) -> Objective:
        """The trace of a whole batch, as one device makes it."""
        (part,) = slice_specs(batch, [batch.size("the batch") or 0])
        return (self._objectives if part in self._objectives else self._of_one).get(part)

    def apart(self, part: Arguments) -> Objective:
        """A trace that nothing here runs, nor holds against others, of a function that may differ by now."""
        return Objective(self._settings.loss, part, self.optimizer.scale_loss, None, self._settings.trainable)

    def _of_replicas(self, part: Arguments, voice: Voice | None) -> Objective:
        if self._has_own_scale and not self.optimizer.built:
            self._unscaled.append((part, voice))
        return self._traced(part, voice)

    def _traced(self, part: Arguments, voice: Voice | None) -> Objective:
        traced = Objective(
            self._settings.loss,
            part,
            self.optimizer.scale_loss,
            voice,
            self._settings.trainable,
            timed=self._timed,
            turning=self._turning,
            examined=self._examined,
        )
        amiss = [*complex_numbers(traced), *meaningless(traced, self._num_replicas)]
        check("the loss function", [*amiss, *self._used_at_times(traced)])
        return traced

    def _used_at_times(self, traced: Objective) -> Iterator[Problem]:
        """Parameters that the function uses in this trace and not in the first one, or the other way."""
        first = next(iter(self._objectives), traced)
        one, other = ({p.ref(): p for p in each.parameters} for each in (first, traced))
        for ref in [ref for ref in one | other if ref not in one or ref not in other]:
            rule = "is trained by some batches or slices, and not by those of another size or kind"
            fix = "Use it for every slice, if only times zero, and freeze layers before the first step"
            yield Problem("variable", (one | other)[ref].name, rule, fix)

    def warn_of_freezing(self) -> None:
        """Tell of `trainable` that was set too late.

        It counts when the loss is traced, as with Keras when a model is compiled.
        """
        if not self.parameters:
            return
        first = self.objectives[0]
        trained = {parameter.ref() for parameter in first.parameters}
        now = {variable.ref() for variable in self._settings.trainable(first.watched)}
        changed = [v.name for v in first.watched if (v.ref() in trained) != (v.ref() in now)]
        if changed:
            warnings.warn(
                f"trainable of {', '.join(changed[:3])}{', ...' if changed[3:] else ''} was set after the "
                "first step, and has no effect: make a new Trainer, with an optimizer of its own.",
                stacklevel=2,
            )

    def outcome_spec(self, batch: Arguments, counts: Sequence[int]) -> tuple[int, Any, dict[str, Any]]:
        """Of a step on such slices: how many replicas work, the dtype of the loss, those of the metrics."""
        share = self.objective(slice_specs(batch, counts)[0], 0, len(counts)).structure
        return len(counts), share.loss.dtype, {name: value.dtype for name, value in share.metrics.items()}

    @property
    def specs(self) -> list[Any]:
        """For each parameter the spec of its gradient."""
        return gradient_specs(self.objectives[0].structure.gradients, self.parameters)

    def update(self, gradients: Sequence[Any]) -> Update:
        """The update for gradients like these, or for specs of them."""
        key = tuple(gradient_specs(gradients, self.parameters))
        if key not in self._updates:
            self._updates[key] = Update(self.optimizer, self.parameters, key, self._unused())
        return self._updates[key]

    def _unused(self) -> list[Any]:
        """What the optimizer was built for, and the loss does not use."""
        used = {parameter.ref() for parameter in self.parameters}
        optimized = self._settings.optimized
        return [] if optimized is None else [v for v in optimized() if v.value.ref() not in used]

    @property
    def penalized(self) -> list[str]:
        """What the numbers are of that must be finite for the penalty; empty where there is none."""
        return self.penalty.names if self.penalty is not None else []

    def with_penalty(
        self,
        gradients: list[Any],
        loss: Any,
        device: str,
        bound: Bound,
        scaled: Callable[[Any], Any] | None = None,
    ) -> tuple[list[Any], Any, Any]:
        """Gradients and loss with the penalty, if there is one, and the numbers of it that must be finite.

        `scaled` multiplies as the loss was; by default as the optimizer does now.
        """
        if self.penalty is None or self._loss_scale is None:
            return gradients, loss, tf.zeros([0])
        scaled = scaled or self._loss_scale.at(device, bound)
        return self.penalty.added(gradients, loss, device, bound, scaled)

    def lost(self) -> list[str]:
        """What a checkpoint cannot keep, in words."""
        if not any(objective.facts.repeats for objective in self.objectives):
            return []
        return ["the loss draws numbers by seeded tf.random ops, whose state TensorFlow does not give out"]


def gradient_specs(gradients: Sequence[Any], parameters: Sequence[tf.Variable]) -> list[Any]:
    """Specs that are the same wherever the gradients come from, so that there is one trace of the update.

    The shape is the parameter's: a call hides the static shape of what it returns. The rows of a
    sparse gradient vary.
    """
    return [
        _spec(gradient, parameter.shape) for gradient, parameter in zip(gradients, parameters, strict=True)
    ]


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
