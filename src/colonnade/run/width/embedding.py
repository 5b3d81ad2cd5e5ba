"""An embedding split by width: its table in consecutive parts, one on each device."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, whole
from colonnade.run.move.on_device import on, total
from colonnade.run.parallel.parallel import Devices
from colonnade.run.variables.parts import Parts
from colonnade.run.width.split_layer import SHARED, SplitLayer, is_sparse, read, split_axis
from colonnade.run.width.weight_rules import Rules


@keras.saving.register_keras_serializable("colonnade.width")
class Embedding(SplitLayer):
    """`keras.layers.Embedding` with its table split over devices.

    Args:
        input_dim: the size of the vocabulary.
        output_dim: the length of a vector.
        split: `columns` gives every device a piece of each vector; `rows` a piece of the vocabulary.
        gather: with False, a layer split by columns returns its parts.
        devices: how many devices, or which; by default all, but no more than there are columns or rows.
        embeddings_initializer, **options: as in Keras.
        embeddings_regularizer, embeddings_constraint: as in Keras, if a part can have them.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> layer = cn.width.Embedding(1000, 10, split="rows", devices=3)
        >>> layer(tf.constant([[1, 999]])).shape.as_list()
        [1, 2, 10]
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        split: str = "columns",
        gather: bool = True,
        devices: Devices = None,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        **options: Any,
    ) -> None:
        rules = Rules.of(
            regularizers={"embeddings": embeddings_regularizer},
            constraints={"embeddings": embeddings_constraint},
        )
        problems = [
            *whole("input_dim", input_dim, 1, like=1024, numpy=True),
            *whole("output_dim", output_dim, 1, like=1024, numpy=True),
            *rules.problems({"embeddings": split_axis(split)}),
        ]
        super().__init__(
            split=split, gather=gather, devices=devices, rules=rules, problems=problems, **options
        )
        self.input_dim, self.output_dim = input_dim, output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.autocast = False  # numbers of words are not to be rounded
        self.settle(output_dim if split == "columns" else input_dim)

    def build(self, input_shape: Any) -> None:
        axis = SHARED[self.split]
        shape = (self.input_dim, self.output_dim)
        self.embeddings = self.add_parts("embeddings", shape, axis, self.embeddings_initializer)

    def call(self, inputs: Any) -> Any:
        ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
        if self.split == "columns":
            columns = [
                on(device, self._looked_up, *read(device, [table]), ids)
                for device, table in zip(self.devices, self.embeddings.parts, strict=True)
            ]
            return self.handed_on(columns)
        ids = self._in_vocabulary(ids)
        rows = [
            on(device, self._own_rows(start, size), *read(device, [table]), ids)
            for (device, start, size), table in zip(self.places, self.embeddings.parts, strict=True)
        ]
        return total(rows, self.devices)

    def _looked_up(self, table: Any, ids: Any) -> Any:
        return tf.cast(tf.gather(table, ids), self.compute_dtype)

    def _own_rows(self, start: int, size: int) -> Any:
        """Vectors of the words that a part has, and zeros for the others."""

        def own(table: Any, ids: Any) -> Any:
            mine = tf.where((ids >= start) & (ids < start + size))
            vectors = self._looked_up(table, tf.gather_nd(ids, mine) - start)
            shape = tf.concat([tf.shape(ids, mine.dtype), [self.output_dim]], axis=0)
            return tf.ensure_shape(tf.scatter_nd(mine, vectors, shape), [*ids.shape, self.output_dim])

        return own

    def _in_vocabulary(self, ids: Any) -> Any:
        """No part would miss a word that none of them has, so this is said here, as a lookup would."""
        inside = tf.reduce_all((ids >= 0) & (ids < self.input_dim))
        said = f"indices must be in [0, {self.input_dim}):"
        with tf.device("/device:CPU:0"), tf.control_dependencies([tf.debugging.Assert(inside, [said, ids])]):
            return tf.identity(ids)

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor((*inputs.shape, self.output_dim), dtype=self.compute_dtype)

    def _unusable(self, inputs: Any) -> Iterator[Problem]:
        if is_sparse(inputs) or isinstance(inputs, tf.RaggedTensor | Parts):
            kind = type(inputs).__name__
            yield Problem("inputs", kind, "must be a dense tensor of whole numbers", "Try tf.sparse.to_dense")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }
