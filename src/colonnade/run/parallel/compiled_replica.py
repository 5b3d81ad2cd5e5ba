"""Calls a trace on one device with XLA, and its gradient too, for `cn.parallel(compile=True)`.

XLA reads variables of its own device only. So a replica has a variable of its own for each that the function
reads, which takes the value of this moment at every call; on the CPU that is the buffer and no copy of it.
The function is a copy of the trace's graph, of which TensorFlow makes the gradient as of any other.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.parallel.uncompilable import WITHOUT
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.traced import Traced, has_gradient, scope


class CompiledReplica:
    """A trace as one device calls it; nothing of it may be `immovable`.

    Args:
        traced: of the user's function.
        device: where it is to run.
    """

    def __init__(self, traced: Traced, device: str) -> None:
        self._traced, self._device = traced, device
        self._call = tf.function(unconverted(_copied(traced)), autograph=False, jit_compile=True)
        with tf.init_scope(), tf.device(device):
            variables = [capture.variable for capture in traced.captures]
            # For each capture; None for one that is no variable.
            self._own_by_capture = [
                None if v is None else tf.Variable(v.read_value(), trainable=False) for v in variables
            ]

    def __call__(self, components: Sequence[Any], replica: int) -> list[Any]:
        """The leaves of the result; the gradient runs on the same device, compiled as well."""
        # Values are read here, so that a tape sees that the result depends on the variables themselves.
        taken = [c.tensor if c.variable is None else c.variable.read_value() for c in self._traced.captures]
        flat = self._differentiable([*components, *taken], scope(replica, self._device))
        return self._traced.leaves(flat)

    def _differentiable(self, tensors: Sequence[Any], name: str) -> Any:
        smooth = [has_gradient(tensor) for tensor in tensors]

        @tf.custom_gradient
        def placed(*inputs: Any) -> Any:
            with tf.device(self._device), tf.name_scope(name):
                sources = self._sources(inputs)
                watched = [s for s, is_smooth in zip(sources, smooth, strict=True) if is_smooth]
                with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
                    tape.watch(watched)
                    results = self._call(*(s.handle if isinstance(s, tf.Variable) else s for s in sources))

            def gradient(*upstream: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                pairs = [(y, dy) for y, dy in zip(results, upstream, strict=True) if has_gradient(y)]
                targets, above = zip(*pairs, strict=True) if pairs else ((), ())
                with tf.device(self._device), tf.name_scope(f"{name}_grad"):
                    gradients = iter(tape.gradient(list(targets), watched, output_gradients=list(above)))
                of_inputs = _once([next(gradients) if is_smooth else None for is_smooth in smooth])
                # Those of the replica's own variables are among them, as gradients of what was read.
                return (of_inputs, [None] * len(variables)) if variables else of_inputs

            return results, gradient

        return placed(*tensors)

    def _sources(self, inputs: Sequence[Any]) -> list[Any]:
        """What the call depends on: for values of variables, the replica's own, which have them now."""
        start = len(inputs) - len(self._own_by_capture)
        sources = list(inputs)
        for at, own in enumerate(self._own_by_capture, start):
            if own is not None:
                own.assign(inputs[at])
                sources[at] = own
        return sources


def _copied(traced: Traced) -> Callable[..., list[Any]]:
    """A function of the inputs of a trace that builds its graph anew, from its ops."""
    graph = traced.concrete.graph.as_graph_def()
    names = [tensor.op.name for tensor in traced.concrete.inputs]
    # XLA knows no placeholders; and only what some op takes can be mapped.
    kept = [node for node in graph.node if node.name not in set(names)]
    del graph.node[:]
    graph.node.extend(kept)
    taken = {name.removesuffix(":0") for node in kept for name in node.input}
    outputs = [tensor.name for tensor in traced.outputs]

    def call(*inputs: Any) -> list[Any]:
        own = dict(zip(names, inputs, strict=True))
        mapped = {name: value for name, value in own.items() if name in taken}
        mapped |= {f"^{name}": value for name, value in own.items() if f"^{name}" in taken}
        made = [name for name in outputs if name.removesuffix(":0") not in own]
        results = iter(tf.graph_util.import_graph_def(graph, mapped, return_elements=made, name=""))
        return [own[name.removesuffix(":0")] if name not in made else next(results) for name in outputs]

    return call


def immovable(traced: Traced) -> Iterator[Problem]:
    """What keeps a function from being called this way, whatever XLA says of it."""
    if traced.written:
        rule = f"the function changes {traced.written[0].name}, which replicas with XLA have each for itself"
        yield Problem("compile", True, rule, WITHOUT)
    if not traced.portable:
        rule = "the function closes over a tensor of the graph around it, which XLA does not see"
        yield Problem("compile", True, rule, "Pass it as cn.broadcast(tensor), or leave it out")
    if not tf.compat.v1.executing_eagerly_outside_functions():
        yield Problem("compile", True, "is not for graphs of tf.compat.v1", WITHOUT)


def _once(gradients: list[Any]) -> list[Any]:
    """Gradients that have none themselves: they depend on variables of the replica, which no tape knows."""

    def refuse(*_: Any) -> Any:
        rule = (
            "the gradient of a compiled gradient, which a tape around another or a persistent one asks for, "
        )
        raise InvalidArgument("parallel()", [Problem("compile", True, rule + "is not offered", WITHOUT)])

    return [None if g is None else _each(lambda t: _undifferentiable(t, refuse), g) for g in gradients]


def _undifferentiable(tensor: Any, refuse: Callable[..., Any]) -> Any:
    return tf.custom_gradient(lambda value: (tf.identity(value), refuse))(tensor)


def _each(fn: Callable[[Any], Any], gradient: Any) -> Any:
    """A function of the values of a gradient, dense or sparse."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)
