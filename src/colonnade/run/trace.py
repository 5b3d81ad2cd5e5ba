"""Trace a function once; call the trace on any device, with shared or other variables.

The captures of a trace are the handles of the variables that it uses. So the one concrete function
that came from the user's code serves every device, and, where a device has copies of the variables,
it is called with the handles of those instead.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.split import Arguments, flatten, pack


class Traced:
    """A concrete function over plain tensors, made by `trace`."""

    def __init__(self, fn: Callable[..., Any], arguments: Arguments) -> None:
        outputs: list[Any] = []

        def flat(*components: Any) -> Any:
            result = arguments.with_components(components).call(fn)
            outputs[:] = [result]
            return [leaf for _, leaf in flatten(result) if _is_tensor(leaf)]

        specs = [tf.TensorSpec(c.shape, c.dtype) for c in arguments.components()]
        self.concrete = tf.function(flat).get_concrete_function(*specs)
        self._structure = outputs[0]

    @property
    def portable(self) -> bool:
        """Whether the trace can be called from any graph: it captured nothing of the one around it."""
        return not any(tf.is_symbolic_tensor(capture) for capture in self.concrete.captured_inputs)

    def paths(self) -> list[tuple[str, Any]]:
        """The leaves of what the function returns, each with its path."""
        return list(flatten(self._structure))

    def on(self, device: str, components: Sequence[Any], scope: str) -> Any:
        """Call the function on `device`; when this is differentiated, the gradient runs there too."""
        floating = [c.dtype.is_floating or c.dtype.is_complex for c in components]

        # A concrete function called under tf.device and differentiated outside leaves its
        # backward call without a device. So the gradient is taken here, by a tape of its own.
        @tf.custom_gradient
        def placed(*inputs: Any) -> Any:
            with tf.device(device), tf.name_scope(scope), tf.GradientTape(persistent=True) as tape:
                tape.watch([c for c, watch in zip(inputs, floating, strict=True) if watch])
                results = self.concrete(*inputs)
            flat = tf.nest.flatten(results, expand_composites=True)

            def gradient(*upstream: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                pairs = [
                    (y, dy)
                    for y, dy in zip(flat, upstream, strict=True)
                    if y.dtype.is_floating or y.dtype.is_complex
                ]
                sources = [c for c, watch in zip(inputs, floating, strict=True) if watch]
                with tf.device(device), tf.name_scope(f"{scope}_grad"):
                    found = tape.gradient(
                        [y for y, _ in pairs],
                        [*sources, *variables],
                        output_gradients=[dy for _, dy in pairs],
                    )
                of_inputs = iter(found[: len(sources)])
                return [next(of_inputs) if watch else None for watch in floating], found[len(sources) :]

            return flat, gradient

        flat = placed(*components)
        results = tf.nest.pack_sequence_as(self.concrete.structured_outputs, flat, expand_composites=True)
        tensors = iter(results)
        return [next(tensors) if _is_tensor(leaf) else leaf for _, leaf in self.paths()]

    def pack(self, leaves: Sequence[Any]) -> Any:
        """What the function returns, with other leaves."""
        return pack(self._structure, iter(leaves))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.Variable | tf.RaggedTensor | tf.SparseTensor | tf.IndexedSlices)


def trace(fn: Callable[..., Any], arguments: Arguments) -> Traced:
    return Traced(fn, arguments)
