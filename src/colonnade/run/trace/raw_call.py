"""Calls a traced function by TensorFlow's op: with other variables than it captured, and at little cost."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import captures
from colonnade.run.trace.concrete import concrete


def raw_call(
    function: Any, inputs: Sequence[Any], types: Sequence[tf.DType], options: bytes | None = None
) -> list[Any]:
    """What `function` gives for all its inputs, captured ones too, in outputs of these types.

    Who calls from eager code again and again asks for the `options` once.
    """
    config = placement_options() if options is None else options
    return list(
        tf.raw_ops.StatefulPartitionedCall(
            args=list(inputs), Tout=list(types), f=function, config_proto=config
        )
    )


def placement_options() -> bytes:
    """Where ops may be placed in a call: as in a call of a tf.function.

    From eager code the op by itself has no soft placement, whatever is set. Then a value that is read from a
    variable on another device, and goes into a branch or a tf.function, is wanted on both devices at once.
    """
    soft = tf.config.get_soft_device_placement()
    return bytes(tf.compat.v1.ConfigProto(allow_soft_placement=soft).SerializeToString())


class Call:
    """A function over plain tensors on one device, for eager code and several threads.

    A call takes a tenth of the time of a tf.function's.

    Args:
        fn: takes tensors and returns a list of tensors; it is traced at once.
        specs: what it takes.
        device: where it is called.
        variables: other variables for it to use, by the `ref()` of those that it captures.
    """

    def __init__(
        self,
        fn: Callable[..., list[Any]],
        specs: Sequence[tf.TensorSpec],
        device: str,
        variables: Mapping[Any, tf.Variable] | None = None,
    ) -> None:
        self._concrete = concrete(fn, *specs)
        self._types = [output.dtype for output in self._concrete.outputs]
        self._device, self._options = device, placement_options()
        others = variables or {}
        captured = captures(self._concrete)
        self.used = {capture.variable.ref() for capture in captured if capture.variable is not None}
        self._captured = [
            others[capture.variable.ref()].handle
            if capture.variable is not None and capture.variable.ref() in others
            else capture.tensor
            for capture in captured
        ]

    def __call__(self, *tensors: Any) -> list[Any]:
        with tf.device(self._device):
            return raw_call(self._concrete, [*tensors, *self._captured], self._types, self._options)
