"""A dense layer split by width: its kernel in consecutive parts, one on each device.

    columns   x -> every device; each computes some columns of the result; gathered, or handed on
    rows      some columns of x -> each device; each computes a part of a sum; one reduction

A layer split by columns that hands its parts on to one split by rows needs that one reduction only.
"""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, whole
from colonnade.run.move.on_device import copies, on, total
from colonnade.run.parallel.parallel import Devices
from colonnade.run.variables.parts import Parts
from colonnade.run.width.split_layer import SHARED, SplitLayer, elementwise, is_sparse, read, split_axis
from colonnade.run.width.weight_rules import Rules


@keras.saving.register_keras_serializable("colonnade.width")
class Dense(SplitLayer):
    """`keras.layers.Dense` with its kernel split over devices.

    Args:
        units: the number of columns of the result, over all devices.
        activation: a function of single elements.
        split: `columns` gives every device some of the units; `rows` some of the inputs.
        gather: with False, a layer split by columns returns its parts (`cn.width.Parts`), for a layer
            split by rows or for `softmax_cross_entropy`.
        devices: how many devices, or which; by default all, but no more than there are columns or rows.
        use_bias, kernel_initializer, bias_initializer, **options: as in Keras.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: as in Keras, if a part can
            have them: `L2` can, and norms of columns with `split="columns"`.

    Example:
        >>> import colonnade as cn, keras
        >>> model = keras.Sequential([
        ...     keras.Input([16]),
        ...     cn.width.Dense(1003, "relu", gather=False, devices=4),
        ...     cn.width.Dense(8, split="rows", devices=4),
        ... ])
        >>> [part.shape[1] for part in model.layers[0].kernel.parts]
        [251, 251, 251, 250]
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        *,
        split: str = "columns",
        gather: bool = True,
        devices: Devices = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **options: Any,
    ) -> None:
        self.activation = keras.activations.get(activation)
        rules = Rules.of(
            regularizers={"kernel": kernel_regularizer, "bias": bias_regularizer},
            constraints={"kernel": kernel_constraint, "bias": bias_constraint},
        )
        axes = {"kernel": split_axis(split), "bias": 0 if split == "columns" else None}
        problems = [
            *whole("units", units, 1, like=1024, numpy=True),
            *elementwise(self.activation, split, gather),
            *rules.problems(axes),
        ]
        super().__init__(
            split=split, gather=gather, devices=devices, rules=rules, problems=problems, **options
        )
        self.units, self.use_bias = units, use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        if split == "columns":
            self.settle(units)

    def build(self, input_shape: Any) -> None:
        inputs = input_shape[-1]
        self.settle(self.units if self.split == "columns" else inputs)
        axis = SHARED[self.split]
        self.kernel = self.add_parts("kernel", (inputs, self.units), axis, self.kernel_initializer)
        self.bias = None
        if self.use_bias:  # of a sum, the first device has the bias
            along = 0 if self.split == "columns" else None
            self.bias = self.add_parts("bias", (self.units,), along, self.bias_initializer)

    def call(self, inputs: Any) -> Any:
        arriving = self._arriving(inputs)
        if self.split == "columns":
            weights = zip(*(variable.parts for variable in self.logical), strict=True)
            return self.handed_on(
                [
                    on(device, self._columns, *read(device, own), *tensors)
                    for device, own, tensors in zip(self.devices, weights, arriving, strict=True)
                ]
            )
        sums = [
            on(device, self._product, *read(device, [kernel]), *tensors)
            for device, kernel, tensors in zip(self.devices, self.kernel.parts, arriving, strict=True)
        ]
        first = self.devices[0]
        bias = self.bias.parts if self.bias else ()
        return on(first, self._finished, total(sums, self.devices), *read(first, bias))

    def _arriving(self, inputs: Any) -> list[tuple[Any, ...]]:
        """What each device works on."""
        if self.split == "columns":
            return [(x,) for x in copies(inputs, self.devices)]
        return [(x,) for x in (inputs if isinstance(inputs, list) else self.pieces(inputs))]

    def _columns(self, kernel: Any, *rest: Any) -> Any:
        bias, tensors = (rest[:1], rest[1:]) if self.bias else ((), rest)
        return self._finished(self._product(kernel, *tensors), *bias)

    def _product(self, kernel: Any, x: Any) -> Any:
        return tf.matmul(x, kernel) if x.shape.rank == 2 else tf.tensordot(x, kernel, 1)

    def _finished(self, product: Any, *bias: Any) -> Any:
        return self.activation(tf.nn.bias_add(product, bias[0]) if bias else product)

    def compute_output_spec(self, inputs: Any) -> Any:
        """One tensor to Keras, also where it is in parts: so a model is the same on any number of devices."""
        return keras.KerasTensor((*inputs.shape[:-1], self.units), dtype=self.compute_dtype)

    def _unusable(self, inputs: Any) -> Iterator[Problem]:
        if is_sparse(inputs):
            yield Problem("inputs", "sparse", "must be dense", "Use cn.width.SparseDense")
        elif isinstance(inputs, tf.RaggedTensor):
            yield Problem("inputs", "ragged", "must be dense", "Try inputs.to_tensor()")
        elif isinstance(inputs, Parts) and self.split == "columns":
            rule = "are in parts, and every column of the result needs all of them"
            yield Problem("inputs", inputs.sizes, rule, 'Choose split="rows", or gather in the layer before')

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }
