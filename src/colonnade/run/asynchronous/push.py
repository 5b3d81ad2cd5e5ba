"""Applies the gradient of one slice, then reads the parameters for the next: the asynchronous update."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.asynchronous.schedule_clock import by_global_step
from colonnade.run.engine.gradients import divided
from colonnade.run.step.objective import now
from colonnade.run.step.update import apply_to, as_keras
from colonnade.run.step.xla import fast
from colonnade.run.trace.raw_call import Call
from colonnade.run.variables.homes import copy_of

INTEGER = tf.TensorSpec([], tf.int64)


def is_count(slot: tf.Variable) -> bool:
    """Whether an optimizer counts its updates with this variable."""
    return slot.shape.rank == 0 and not slot.dtype.is_floating and "iteration" in slot.name


class Pushes:
    """The calls that apply a gradient, and the counters with which they count updates.

    Args:
        optimizer, slots: the user's optimizer, and its variables.
        parameters: what is trained.
        shared: what a device reads when it reads the parameters.
        device: where updates are made.
        damping: whether to divide a step by 1 + the age of its gradient.
        scaled: whether the loss is multiplied by a scale that changes.
    """

    def __init__(
        self,
        optimizer: Any,
        slots: Sequence[tf.Variable],
        parameters: Sequence[tf.Variable],
        shared: Sequence[tf.Variable],
        device: str,
        *,
        damping: bool,
        scaled: bool,
    ) -> None:
        self._optimizer, self._parameters, self._shared = optimizer, parameters, shared
        self._device, self._damping, self._scaled = device, damping, scaled
        self._calls: dict[Hashable, Call] = {}
        # By the ref of the user's, which count steps.
        self.counters: dict[Any, tf.Variable] = {
            slot.ref(): copy_of(slot, slot.device) for slot in slots if is_count(slot)
        }

    def steps(self) -> int:
        """As the user's optimizer counts them."""
        return max((int(ref.deref()) for ref in self.counters), default=0)

    def factor(self) -> Any:
        """What a loss is multiplied by."""
        return self._optimizer.scale_loss(tf.constant(1.0))

    def of(self, specs: Sequence[Any]) -> Call:
        """Apply a gradient of these specs, one for each parameter or None, then read the parameters.

        The call takes the global step, the age, the scale that was read, if there is one, and the gradient.
        It gives the time when all of that had arrived, and the parameters.
        """
        key = tuple(specs)
        if key not in self._calls:
            call = self._made(specs)
            # An optimizer around another one has a counter that nobody counts with.
            self.counters = {ref: own for ref, own in self.counters.items() if ref in call.used}
            self._calls[key] = call
        return self._calls[key]

    def _made(self, specs: Sequence[Any]) -> Call:
        present = [spec for spec in specs if spec is not None]
        scale = [tf.TensorSpec([], tf.float32)] if self._scaled else []
        flat = tf.nest.flatten(present, expand_composites=True)
        applied = fast(self._apply(specs, present), INTEGER, *scale, *flat)
        parameters = self._parameters

        def push(step: Any, age: Any, *tensors: Any) -> list[Any]:
            with tf.control_dependencies(tensors):
                arrived = now()
            with tf.control_dependencies([arrived]):
                before = [p.read_value() for p in parameters] if self._damping else []
                applied(step, *tensors)
            for parameter, old in zip(parameters, before, strict=self._damping):
                moved = parameter.read_value() - old
                parameter.assign(old + moved / tf.cast(1 + age, parameter.dtype))
            return [arrived, *(variable.read_value() for variable in self._shared)]

        return Call(push, [INTEGER, INTEGER, *scale, *flat], self._device, self.counters)

    def _apply(self, specs: Sequence[Any], present: Sequence[Any]) -> Callable[..., Any]:
        """The optimizer's update with the gradients that are there."""
        optimizer, trained = self._optimizer, as_keras(self._parameters)

        def apply(step: Any, *tensors: Any) -> Any:
            scales, flat = tensors[: int(self._scaled)], tensors[int(self._scaled) :]
            given = iter(tf.nest.pack_sequence_as(present, flat, expand_composites=True))
            gradients = [None if spec is None else next(given) for spec in specs]
            for read in scales:  # the optimizer divides by its scale of now
                gradients = [divided(gradient, read / self.factor()) for gradient in gradients]
            with by_global_step(optimizer, step):
                apply_to(optimizer, gradients, trained)
            return tf.constant(0)

        return apply
