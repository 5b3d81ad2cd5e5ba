"""Writes and reads tensors in TensorFlow's own checkpoint format (`tf.train.load_checkpoint`)."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.run.variables.part_offset import BAR

HOST = "/device:CPU:0"
PATTERNS = frozenset("*?[\\")  # TensorFlow takes the name of what it reads for a pattern


def write(folder: Path, prefix: str, tensors: Mapping[str, Any]) -> None:
    """Write tensors under their names as the files `prefix.index` and `prefix.data-...` of a folder.

    Slices of one tensor have its name, and what they are behind a bar (see `Slice`).
    """
    names, slices = _cut(tensors)
    with tf.device(HOST):
        tf.raw_ops.SaveV2(
            prefix=str(folder / prefix),
            tensor_names=names,
            shape_and_slices=slices,
            tensors=list(tensors.values()),
        )


def read(folder: Path, prefix: str, wanted: Iterable[str] | None = None) -> dict[str, Any]:
    """Tensors of `write` by their names, all by default; slices may be other ones than were written."""
    with _literally(folder) as plain:
        types = tf.train.load_checkpoint(str(plain / prefix)).get_variable_to_dtype_map()
        keys = list(types if wanted is None else wanted)
        names, slices = _cut(keys)
        with tf.device(HOST):
            values = tf.raw_ops.RestoreV2(
                prefix=str(plain / prefix),
                tensor_names=names,
                shape_and_slices=slices,
                dtypes=[types[name] for name in names],
            )
    return dict(zip(keys, values, strict=True))


def kinds(folder: Path, prefix: str) -> dict[str, tf.TensorSpec]:
    """The dtype and shape of each tensor."""
    with _literally(folder) as plain:
        reader = tf.train.load_checkpoint(str(plain / prefix))
        shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return {name: tf.TensorSpec(shapes[name], dtype) for name, dtype in types.items()}


@contextmanager
def _literally(folder: Path) -> Iterator[Path]:
    """A path to the folder that is no pattern."""
    if not PATTERNS.intersection(str(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="colonnade-") as beside:
        link = Path(beside) / "step"
        link.symlink_to(folder.resolve())
        yield link


def _cut(keys: Iterable[str]) -> tuple[list[str], list[str]]:
    """Names and slices; an empty slice is the whole."""
    both = [key.partition(BAR) for key in keys]
    return [name for name, _, _ in both], [cut for _, _, cut in both]
