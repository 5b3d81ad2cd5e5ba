"""Keeps an op and its gradient on one device, and copies tensors from one device to another.

A tape puts the gradient of an op where the tape is asked for it, not where the op ran. So every piece
of work that belongs to a device brings its own gradient, which opens the same device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.move.reduce import order_for, reduce


def on(device: str, fn: Callable[..., Any], *tensors: Any) -> Any:
    """`fn(*tensors)` on a device, and its gradient there too.

    Args:
        device: a device string.
        fn: a function of these tensors alone: a variable is passed as the tensor read from it.
        *tensors: what it is called with; whole numbers pass no gradient.

    Example:
        >>> on("/device:CPU:1", tf.square, tf.constant(3.0)).device[-5:]
        'CPU:1'
    """

    @tf.custom_gradient
    def placed(*inputs: Any) -> Any:
        sources = [x for x in inputs if x.dtype.is_floating]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(sources)
            results = fn(*inputs)

        def gradient(*upstream: Any) -> list[Any]:
            with tf.device(device):
                arrived = [tf.convert_to_tensor(g) for g in upstream]
                gradients = iter(tape.gradient(tf.nest.flatten(results), sources, output_gradients=arrived))
            return [next(gradients) if x.dtype.is_floating else None for x in inputs]

        return results, gradient

    # In a graph, custom_gradient passes all it is given and all it returns through one op, which
    # belongs on this device as well.
    with tf.device(device):
        return placed(*tensors)


def copies(tensor: Any, devices: Sequence[str]) -> list[Any]:
    """A tensor for each device to read; their gradients are added in one reduction."""
    if len(devices) == 1:
        return [tensor]

    @tf.custom_gradient
    def spread(whole: Any) -> Any:
        def gradient(*upstream: Any) -> Any:
            return total(upstream, devices)

        return [tf.identity(whole) for _ in devices], gradient

    with tf.device(devices[0]):
        return list(spread(tensor))


def total(partial: Sequence[Any], devices: Sequence[str]) -> Any:
    """The sum of what the devices hold, on the first of them: one reduction.

    The gradient of a sum is the same for all its terms, so it needs no op and no device.
    """
    return reduce([[each] for each in partial], devices, order_for(devices))[0]
