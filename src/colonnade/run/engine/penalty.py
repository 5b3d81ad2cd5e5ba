"""The penalty of a training: a function of the variables whose value is added to the loss once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.engine.gradients import divided, each, plus
from colonnade.run.step.objective import stacked, vital
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.traced import Traced, trace

# The handles of some captures, where something is called.
Bound = Callable[[Any], Mapping[Any, Any]]


class Penalty:
    """A penalty traced with its gradients.

    Args:
        penalty: a function without arguments.
        parameters: what is trained.
    """

    def __init__(self, penalty: Callable[[], Any], parameters: Sequence[tf.Variable]) -> None:
        def with_gradients() -> list[Any]:
            with tf.GradientTape() as tape:
                value = penalty()
            return [value, *tape.gradient(value, parameters)]

        self._traced = trace(with_gradients)
        # What the numbers are of that must be finite: itself, and the gradient of each variable.
        self.names = ["the penalty", *(parameter.name for parameter in parameters)]

    @property
    def captures(self) -> Any:
        return self._traced.captures

    def added(
        self, gradients: Sequence[Any], loss: Any, device: str, bound: Bound, scaled: Callable[[Any], Any]
    ) -> tuple[list[Any], Any, Any]:
        """Gradients and loss with the penalty, computed on `device` from the variables bound there.

        The third result is its health: numbers that must be finite, for its value and for its gradients.
        """
        value, *extra = self._traced.on(device, [], bound(self.captures))
        # A penalty is part of what the optimizer unscales, like the loss.
        with tf.device(device):
            pairs = zip(gradients, extra, strict=True)
            totals = [plus(g, None if e is None else scaled(e)) for g, e in pairs]
        # Before it is scaled: what overflows then is for loss scaling to find.
        health = stacked([vital(part) for part in (value, *extra)])
        return totals, loss + tf.cast(value, loss.dtype), health


class LossScale:
    """What an optimizer multiplies a loss by: a number that never changes, or a variable of its own."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        traced = trace(unconverted(lambda: optimizer.scale_loss(tf.constant(1.0))))
        self._traced: Traced | None = traced if traced.captures else None

    def at(self, device: str, bound: Bound) -> Callable[[Any], Any]:
        """Multiplies a gradient as the optimizer scales a loss, by the scale that is bound on `device`."""
        if self._traced is None:
            return lambda gradient: each(self._optimizer.scale_loss, gradient)
        (factor,) = self._traced.on(device, [], bound(self._traced.captures))
        return lambda gradient: divided(gradient, 1 / factor)
