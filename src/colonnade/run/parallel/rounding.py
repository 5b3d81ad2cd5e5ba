"""How coarsely a traced function rounds: the largest step between floats on the way to each result."""

from collections.abc import Container, Iterable
from typing import Any

import tensorflow as tf

from colonnade.run.batch.split import Arguments, is_tensor
from colonnade.run.trace.captures import ancestors
from colonnade.run.trace.traced import Traced

STEPS = {tf.bfloat16: 2.0**-7, tf.float16: 2.0**-10, tf.float32: 2.0**-23, tf.float64: 2.0**-52}


class Rounding:
    """The coarsest step behind each output, by its path, and behind each gradient, by its source.

    Args:
        traced: the function.
        arguments: what it was traced for; their paths name the sources, and so do names of variables.
    """

    def __init__(self, traced: Traced, arguments: Arguments) -> None:
        concrete = traced.concrete
        self._coarsest = coarsest(concrete.graph.get_operations())
        leaves = zip(traced.paths(), traced.leaves(traced.outputs), strict=True)
        above = {path: _above(leaf) for (path, _), leaf in leaves if is_tensor(leaf)}
        self.outputs = {path: self._step(ops) for path, ops in above.items()}
        names = [leaf.path for leaf in arguments.tensors for _ in _parts(leaf.value)]
        names += [c.variable.name if c.variable is not None else "" for c in traced.captures]
        # A gradient passes through all that lies between its source and an output.
        self.gradients = dict.fromkeys(names, 0.0)
        for name, tensor in zip(names, concrete.inputs, strict=True):
            passed = [self.outputs[path] for path, ops in above.items() if tensor.op in ops]
            self.gradients[name] = max([self.gradients[name], *passed])

    def _step(self, ops: Iterable[Any]) -> float:
        """What a called function does inside is not looked at: it may be as coarse as anything here."""
        called = any(value.func.name for op in ops for value in op.node_def.attr.values())
        return self._coarsest if called else coarsest(ops)


def _parts(value: Any) -> list[Any]:
    return tf.nest.flatten(value, expand_composites=True)


def _above(leaf: Any) -> set[Any]:
    """The ops that a value is made by."""
    return {op for part in _parts(leaf) for op in ancestors(part.op)}


def coarsest(ops: Iterable[Any], but: Container[str] = ()) -> float:
    """The coarsest step of what these ops give, but for ops of some types."""
    given = (tensor for op in ops if op.type not in but for tensor in op.outputs)
    return max([0.0, *(STEPS.get(tensor.dtype, 0.0) for tensor in given)])
