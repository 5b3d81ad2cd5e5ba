"""Tensors in TensorFlow's own checkpoint format, which `tf.train.load_checkpoint` reads too."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

HOST = "/device:CPU:0"


def write(folder: Path, prefix: str, tensors: Mapping[str, Any]) -> None:
    """Write tensors under their names as the files `prefix.index` and `prefix.data-...` of a folder."""
    with tf.device(HOST):
        tf.raw_ops.SaveV2(
            prefix=str(folder / prefix),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )


def read(folder: Path, prefix: str) -> dict[str, Any]:
    """All tensors of `write`, by their names."""
    types = tf.train.load_checkpoint(str(folder / prefix)).get_variable_to_dtype_map()
    with tf.device(HOST):
        values = tf.raw_ops.RestoreV2(
            prefix=str(folder / prefix),
            tensor_names=list(types),
            shape_and_slices=[""] * len(types),
            dtypes=list(types.values()),
        )
    return dict(zip(types, values, strict=True))


def kinds(folder: Path, prefix: str) -> dict[str, str]:
    """The dtype and shape of each tensor, in words."""
    reader = tf.train.load_checkpoint(str(folder / prefix))
    shapes = reader.get_variable_to_shape_map()
    return {
        name: f"{dtype.name} {list(shapes[name])}"
        for name, dtype in reader.get_variable_to_dtype_map().items()
    }
