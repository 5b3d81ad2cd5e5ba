"""A tensor, or a variable, in consecutive parts on several devices, for layers split by width."""

from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.move.on_device import on


class Parts(tf.experimental.ExtensionType):
    """A tensor whose last dim is split over devices: each part holds the next columns.

    A width layer with `gather=False` returns it. TensorFlow takes it where it takes a nest of tensors.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> layer = cn.width.Dense(5, gather=False, devices=2)
        >>> parts = layer(tf.ones([4, 3]))
        >>> [part.shape.as_list() for part in parts.tensors], parts.gather().shape.as_list()
        ([[4, 3], [4, 2]], [4, 5])
    """

    tensors: tuple[tf.Tensor, ...]
    devices: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of columns of each part."""
        return tuple(tensor.shape[-1] for tensor in self.tensors)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first column of each part."""
        return starts(self.sizes)

    @property
    def width(self) -> int:
        """The number of columns of the whole."""
        return sum(self.sizes)

    def gather(self) -> Any:
        """The whole tensor, on the first device."""
        return joined(self.tensors, self.devices[0])


@tf.autograph.experimental.do_not_convert
def _not_one_tensor(value: Parts, dtype: Any = None, name: str | None = None, as_ref: bool = False) -> Any:
    rule = "is in parts on several devices, and is no single tensor"
    fix = "Gather it (parts.gather()), or use a cn.width layer or cn.width.softmax_cross_entropy"
    raise InvalidArgument("this operation", [Problem("value", f"Parts of {value.sizes}", rule, fix)])


tf.register_tensor_conversion_function(Parts, _not_one_tensor)


class Logical(tf.train.experimental.PythonState):
    """A variable in parts, which is saved and loaded as one, by Keras and by `tf.train.Checkpoint`."""

    def __init__(self, name: str, parts: Sequence[Any], axis: int, where: str) -> None:
        self.name, self.axis, self._where = name, axis, where
        self._parts = dict(enumerate(parts))

    @property
    def parts(self) -> tuple[Any, ...]:
        """The Keras variables, each on its device."""
        return tuple(self._parts.values())

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(self.sizes)
        return tuple(shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(part.shape[self.axis] for part in self.parts)

    def numpy(self) -> Any:
        """The whole, in the memory of the host."""
        return np.concatenate([part.numpy() for part in self.parts], axis=self.axis)

    def assign(self, value: Any) -> None:
        """Give each part its piece of the whole."""
        if tuple(value.shape) != self.shape:
            rule, fix = f"its shape must be {self.shape}", "Load it into a layer of the same width"
            raise InvalidArgument(self._where, [Problem(self.name, tuple(value.shape), rule, fix)])
        pieces = np.split(value, starts(self.sizes)[1:], axis=self.axis)
        for part, piece in zip(self.parts, pieces, strict=True):
            part.assign(piece)

    def serialize(self) -> bytes:
        """The whole, as `tf.train.Checkpoint` saves it: parts would bind it to a number of devices."""
        stream = BytesIO()
        np.save(stream, self.numpy(), allow_pickle=False)
        return stream.getvalue()

    def deserialize(self, string_value: bytes) -> None:
        value = np.load(BytesIO(string_value), allow_pickle=False)
        if value.dtype.kind == "V":  # NumPy saves the bits of a dtype that is not its own, and not its name
            value = value.view(tf.as_dtype(self.parts[0].dtype).as_numpy_dtype)
        self.assign(value)


# A part of a variable lives on the device that its layer was given, whoever else moves variables; this
# attribute of the TensorFlow variable says so.
_HOME = "colonnade_home"


def give_home(variable: tf.Variable, device: str) -> None:
    """Say that a variable belongs to a device."""
    setattr(variable, _HOME, device)


def home_of(variable: tf.Variable) -> str | None:
    """The device to which a variable belongs, if it is a part of one."""
    return getattr(variable, _HOME, None)


def starts(sizes: Sequence[int]) -> tuple[int, ...]:
    """Where consecutive parts begin.

    >>> starts((3, 3, 2))
    (0, 3, 6)
    """
    return tuple(accumulate(sizes, initial=0))[:-1]


def joined(tensors: Sequence[Any], device: str) -> Any:
    """The parts side by side, on one device."""
    if len(tensors) == 1:
        return tensors[0]
    return on(device, lambda *parts: tf.concat(parts, axis=-1), *tensors)
