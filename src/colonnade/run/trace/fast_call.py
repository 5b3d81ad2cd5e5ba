"""Calls a traced function from eager code and several threads, faster than a tf.function does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import captures
from colonnade.run.trace.concrete import concrete


class Call:
    """A function over plain tensors on one device; a call takes a tenth of the time of a tf.function's.

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
        self._device = device
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
            return tf.raw_ops.StatefulPartitionedCall(
                args=[*tensors, *self._captured], Tout=self._types, f=self._concrete
            )
