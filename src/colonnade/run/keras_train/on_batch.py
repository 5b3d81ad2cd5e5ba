"""`cn.train_on_batch(model, x, y)` and `cn.test_on_batch`: for loops over batches written by hand."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import check
from colonnade.run.engine.protocols import Sync
from colonnade.run.keras_train.model_steps import How, ModelSteps, silent
from colonnade.run.model.exchanged import lent
from colonnade.run.parallel.parallel import Devices


def train_on_batch(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    devices: Devices = None,
    sync: Sync | None = None,
    variables: str = "auto",
    prove: bool | str = True,
    split: Sequence[str | int] | None = None,
    **arguments: Any,
) -> Any:
    """One update of a compiled Keras model, with one batch on several devices; else `model.train_on_batch`.

    The step stays with the model: a second call with such a batch traces nothing, nor does a later `cn.fit`.

    Args:
        model: a compiled model; a `train_step` of its own is run by every device on its slice.
        x, y, sample_weight: the global batch.
        devices: how many devices, or which; all by default.
        sync, variables, prove, split: as for `cn.fit`.
        **arguments: whatever else `model.train_on_batch` takes: `class_weight`, `return_dict`.

    Returns:
        What `model.train_on_batch` returns: loss and metrics of this batch.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile(keras.optimizers.SGD(0.1), "mse")
        >>> float(cn.train_on_batch(model, tf.ones([9, 2]), tf.ones([9, 1]), devices=2))
        1.0
    """
    how = How.chosen("train_on_batch()", devices, sync, variables, prove, split)
    check("train_on_batch()", how.problems(model))
    steps = ModelSteps(model, how, silent)
    x, y, sample_weight = _plain((x, y, sample_weight))
    with lent(model, train_function=steps.train):
        logs = model.train_on_batch(x, y, sample_weight=sample_weight, **arguments)
    steps.keep()
    return logs


def test_on_batch(
    model: keras.Model,
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    devices: Devices = None,
    prove: bool | str = True,
    split: Sequence[str | int] | None = None,
    **arguments: Any,
) -> Any:
    """Loss and metrics of one batch, on several devices; everything else is `model.test_on_batch`.

    Args:
        model: a compiled model.
        x, y, sample_weight: the global batch.
        devices: how many devices, or which; all by default.
        prove, split: as for `cn.evaluate`.
        **arguments: whatever else `model.test_on_batch` takes: `return_dict`.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> float(cn.test_on_batch(model, tf.ones([9, 2]), tf.ones([9, 1]), devices=2))
        1.0
    """
    how = How.chosen("test_on_batch()", devices, None, "auto", prove, split)
    check("test_on_batch()", how.problems_without_training(model, "test"))
    steps = ModelSteps(model, how, silent)
    x, y, sample_weight = _plain((x, y, sample_weight))
    with lent(model, test_function=steps.test):
        logs = model.test_on_batch(x, y, sample_weight=sample_weight, **arguments)
    steps.keep()
    return logs


# What a module with "test" in its names offers is not what pytest looks for.
test_on_batch.__test__ = False  # type: ignore[attr-defined]


def _plain(batch: Any) -> Any:
    """A batch with arrays for tables and columns of Pandas, as TensorFlow takes them in Keras's step."""
    return tf.nest.map_structure(lambda leaf: leaf.to_numpy() if hasattr(leaf, "to_numpy") else leaf, batch)
