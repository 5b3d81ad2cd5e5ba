"""Compiles large optimizer updates by XLA: one pass over the memory in place of one for every op.

An optimizer is a dozen ops for every parameter, each of which reads and writes as many numbers as the
parameter has. XLA makes one loop of them, and of the sum over the replicas too. What it compiles is the
optimizer's own trace.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.run.trace.captures import Capture, captures
from colonnade.run.trace.concrete import concrete, unconverted, undisturbed

# Compiling takes some tenths of a second: worth it for updates that touch at least so many numbers.
LARGE = 2**18

HALVES = (tf.float16, tf.bfloat16)

# What XLA is sure to compile, and to compute as TensorFlow does: variables and arithmetic.
# fmt: off
PLAIN = {
    "Abs", "AddN", "AddV2", "AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp", "Cast",
    "Const", "Cos", "DivNoNan", "Equal", "Exp", "ExpandDims", "Fill", "Floor", "FloorDiv", "Greater",
    "GreaterEqual", "Identity", "IdentityN", "L2Loss", "Less", "LessEqual", "Log", "LogicalAnd",
    "LogicalNot", "Maximum", "Mean", "Minimum", "Mul", "Neg", "NoOp", "NotEqual", "Pack", "Placeholder",
    "Pow", "ReadVariableOp", "RealDiv", "Reciprocal", "Rsqrt", "Select", "SelectV2", "Sign", "Sqrt",
    "Square", "Sub", "Sum", "Tanh",
}
# fmt: on


def compiled(fn: Callable[..., Any], *specs: Any) -> Any:
    """A function of ours as a concrete function that XLA compiles when it is called."""
    with undisturbed(), tf.init_scope():
        function = tf.function(unconverted(fn), autograph=False, jit_compile=True)
        return function.get_concrete_function(*specs)


def fast(fn: Callable[..., Any], *specs: Any) -> Any:
    """An update as a concrete function, compiled if that is worth it."""
    plain = concrete(fn, *specs)
    # Called as a function, and not as an op, so that the graph around it knows the variables.
    on_cpu = not any(c.variable is not None and hardware.is_card(c.variable.device) for c in captures(plain))
    wanted = on_cpu and worth_compiling(plain, captures(plain))
    return compiled(lambda *args: plain(*args), *specs) if wanted else plain


def worth_compiling(update: Any, captured: Sequence[Capture]) -> bool:
    """Whether an update, given as a concrete function, is large, plain arithmetic, and on one device.

    Sparse gradients are not plain: each number of rows would be compiled anew. Nor are halves of floats, of
    which XLA may keep more bits than TensorFlow does.
    """
    variables = [capture.variable for capture in captured if capture.variable is not None]
    places = {variable.device for variable in variables}
    if not all(variable.shape.is_fully_defined() for variable in variables):
        return False
    return (
        sum(variable.shape.num_elements() for variable in variables) >= LARGE
        and len(variables) == len(captured)
        and not any(tensor.dtype in HALVES for op in update.graph.get_operations() for tensor in op.outputs)
        and len(places) == 1
        and hardware.compiles_for(places.pop())
        and all(op.type in PLAIN for op in update.graph.get_operations())
        and all(t.dtype == tf.resource or t.shape.is_fully_defined() for t in update.inputs)
    )
