"""What all layers split by width share: devices, parts of weights, saving them as one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import sizes
from colonnade.run.move.on_device import on
from colonnade.run.parallel.parallel import Devices
from colonnade.run.variables.part_offset import mark
from colonnade.run.variables.parts import Logical, Parts, give_home, joined, starts
from colonnade.run.width.weight_rules import Rules

# The dim of a weight that is split.
SHARED = {"columns": 1, "rows": 0}
SPLITS = tuple(SHARED)
# Activations of Keras that look at a whole row, of which a part has only some columns.
WHOLE_ROW = ("softmax", "log_softmax", "sparsemax", "glu")

# What `loading_on` was given, as a tuple of one, because None means all devices.
_instead: ContextVar[tuple[Any] | None] = ContextVar("_instead", default=None)


@contextmanager
def loading_on(devices: Devices = None) -> Iterator[None]:
    """Split the layers of a model that is loaded here over these devices, not over those it was saved with.

    Args:
        devices: how many devices, or which; all by default.

    Example:
        >>> import colonnade as cn, keras
        >>> saved = cn.width.Dense(10, devices=4).get_config()
        >>> with cn.width.loading_on(3):
        ...     len(cn.width.Dense.from_config(saved).available)
        3
    """
    hardware.resolve(devices, "cn.width.loading_on()")
    token = _instead.set((devices,))
    try:
        yield
    finally:
        _instead.reset(token)


class SplitLayer(keras.layers.Layer):
    """A Keras layer whose weights are in parts on several devices.

    Args:
        split: `columns` splits what comes out, `rows` what comes in.
        gather: whether parts of the result are put together.
        devices: how many devices, or which; by default all, but no more than there are columns or rows.
        rules: regularisers and constraints of the weights.
        problems: what else is wrong with what a user passed.
        **options: those of every Keras layer: `name`, `dtype`, `trainable`.
    """

    def __init__(
        self,
        *,
        split: str,
        gather: bool,
        devices: Devices,
        rules: Rules,
        problems: Sequence[Problem],
        **options: Any,
    ) -> None:
        self.available = hardware.resolve(devices, self.where)
        check(self.where, [*problems, *_problems(split, gather, options.get("activity_regularizer"))])
        super().__init__(**options)
        self.split, self.gather, self.rules = split, gather, rules
        self._asked = devices
        self.devices: tuple[str, ...] = ()  # of the parts; known when the layer is built
        self.sizes: tuple[int, ...] = ()
        self.logical: tuple[Logical, ...] = ()

    @property
    def where(self) -> str:
        return f"cn.width.{type(self).__name__}()"

    @tf.autograph.experimental.do_not_convert
    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        """Refuse the wrong kind of input here: from inside `call`, Keras would wrap the error in another."""
        check(self.where, self._unusable(inputs))
        if isinstance(inputs, Parts):
            if not self.built:
                self.build((*inputs.tensors[0].shape[:-1], inputs.width))
            self._refuse_other_parts(inputs)
            inputs = list(inputs.tensors)  # which Keras takes for a nest of tensors
        return super().__call__(inputs, *args, **options)

    def _unusable(self, inputs: Any) -> Iterator[Problem]:
        """What is wrong with the kind of an input."""
        raise NotImplementedError

    def _refuse_other_parts(self, inputs: Parts) -> None:
        if (inputs.sizes, inputs.devices) != (self.sizes, self.devices):
            rule = f"the layer before has {len(inputs.devices)} parts, on {', '.join(inputs.devices)}"
            mine = Problem("devices", self.devices, rule, "Give both layers the same devices")
            raise InvalidArgument(self.where, [mine])

    def settle(self, width: int | None) -> None:
        """Decide on the parts of a dim of this size."""
        if width is None:
            rule, fix = "the size of its last dim must be known", "Give the model an Input with a shape"
            raise InvalidArgument(self.where, [Problem("inputs", None, rule, fix)])
        if self._asked is not None and len(self.available) > width:
            rule = f"{len(self.available)} devices cannot share {width} {self.split}"
            fix = f"Name at most {width}, or leave it out"
            raise InvalidArgument(self.where, [Problem("devices", self._asked, rule, fix)])
        self.sizes = sizes(width, len(self.available))
        self.devices = self.available[: len(self.sizes)]

    def add_parts(self, name: str, shape: Sequence[int], axis: int | None, initializer: Any) -> Logical:
        """Make a variable in parts along `axis`, or whole on the first device where there is none.

        The values are drawn for the whole, in the memory of the host, so that any number of devices
        begins with what one device begins with.
        """
        with tf.init_scope(), tf.device("/device:CPU:0"):
            whole = initializer(tuple(shape), dtype=self.variable_dtype)
            pieces = [whole] if axis is None else tf.split(whole, self.sizes, axis)
        parts = []
        for i, (device, piece) in enumerate(zip(self.devices, pieces, strict=False)):
            full = name if axis is None else f"{name}_part_{i}"
            with tf.init_scope(), tf.device(device):
                first = _value(piece)
                rules = self.rules.of_weight(name)
                parts.append(
                    self.add_weight(shape=piece.shape.as_list(), initializer=first, name=full, **rules)
                )
                give_home(parts[-1].value, device)
        variable = Logical(name, parts, axis or 0, self.where)
        if axis is not None:
            mark([part.value for part in parts], axis)
        self.logical = (*self.logical, variable)
        return variable

    def handed_on(self, parts: Sequence[Any]) -> Any:
        """The parts of a result: put together, or as they are."""
        if self.gather:
            return joined(parts, self.devices[0])
        return Parts(tuple(parts), self.devices)

    def pieces(self, whole: Any) -> list[Any]:
        """A tensor cut along its last dim as the rows of the weights are."""
        if len(self.sizes) == 1:
            return [whole]
        return list(on(self.devices[0], lambda x: tf.split(x, self.sizes, axis=-1), whole))

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """Device, first column or row, and number of them, of each part."""
        return list(zip(self.devices, starts(self.sizes), self.sizes, strict=True))

    def save_own_variables(self, store: Any) -> None:
        """One array per variable, whatever the number of parts: what a Keras layer would save."""
        for i, variable in enumerate(self.logical):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        held, wanted = len(store.keys()), len(self.logical)
        if held != wanted:
            rule = f"holds {held} variables for {self.name}, which has {wanted}"
            fix = "Load what the same layers saved" if self.built else "Build the model first"
            raise InvalidArgument(self.where, [Problem("file", self.name, rule, fix)])
        for i, variable in enumerate(self.logical):
            variable.assign(np.asarray(store[str(i)]))

    def get_config(self) -> dict[str, Any]:
        devices = self._asked if isinstance(self._asked, int | None) else list(self._asked)
        own = {"split": self.split, "gather": self.gather, "devices": devices}
        return {**super().get_config(), **own, **self.rules.config()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        instead = _instead.get()
        return super().from_config({**config, "devices": instead[0]} if instead else config)


def elementwise(activation: Any, split: str, gather: bool) -> Iterator[Problem]:
    """Refuse an activation that needs whole rows where it would get parts."""
    if split != "columns" or not callable(activation):
        return
    name = getattr(activation, "__name__", type(activation).__name__)
    keras_own = getattr(keras.activations, name, None) is activation
    if name in WHOLE_ROW or not (keras_own or _same_in_parts(activation)):
        rule = "needs whole rows, and a part has only some columns"
        fix = "Leave it out, and apply it to the gathered result"
        if not gather:
            fix = "Leave it out; cn.width.softmax_cross_entropy takes logits"
        yield Problem("activation", name, rule, fix)


def _same_in_parts(activation: Any) -> bool:
    """Whether a row gives the same, whole or in halves: no name tells that of a function."""
    with tf.init_scope(), tf.device("/device:CPU:0"):
        row = tf.constant([[-3.0, -1.0, -0.2, 0.3, 1.0, 4.0]])
        try:
            whole = np.asarray(activation(row))
            halves = np.concatenate([np.asarray(activation(half)) for half in tf.split(row, 2, axis=1)], 1)
        except (ValueError, TypeError, tf.errors.InvalidArgumentError):  # it cannot take another width
            return False
    return whole.shape == halves.shape and bool(np.allclose(whole, halves, rtol=1e-5, atol=1e-6))


def _problems(split: Any, gather: Any, activity_regularizer: Any) -> Iterator[Problem]:
    if split not in SPLITS:
        yield Problem("split", split, f"must be one of {', '.join(SPLITS)}", "Leave it out for columns")
    if not isinstance(gather, bool):
        yield Problem("gather", gather, "must be True or False", "Leave it out")
    elif split == "rows" and not gather:
        rule = "the result of a layer that is split by rows is a sum, which has no parts"
        yield Problem("gather", gather, rule, 'Leave it out, or choose split="columns"')
    elif not gather and activity_regularizer is not None:
        rule = "is for one tensor, and this layer hands on parts (gather=False)"
        yield Problem("activity_regularizer", activity_regularizer, rule, "Leave gather=False out")


def _value(piece: Any) -> Any:
    """An initializer that gives what was drawn already."""
    return lambda shape, dtype=None: piece


def split_axis(split: Any) -> int | None:
    """The dim of a weight that is split; None where a user said nothing that is a split."""
    return SHARED.get(split) if isinstance(split, str) else None


def is_sparse(inputs: Any) -> bool:
    """Whether an input is sparse, or stands for a sparse one while Keras builds a model."""
    return isinstance(inputs, tf.SparseTensor) or bool(getattr(inputs, "sparse", False))


def read(device: str, weights: Sequence[Any]) -> list[Any]:
    """The values of variables, read where they live."""
    with tf.device(device):
        return [tf.convert_to_tensor(weight) for weight in weights]
