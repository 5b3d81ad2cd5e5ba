"""`cn.evaluate(model, ...)` and `cn.predict(model, ...)`: Keras's own, with every batch on all devices."""

from collections.abc import Sequence
from typing import Any

import keras

from colonnade.errors import check
from colonnade.run.keras_train.model_steps import How, ModelSteps, saying
from colonnade.run.model.exchanged import lent
from colonnade.run.parallel.parallel import Devices


def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    batch_size: int | None = None,
    *,
    devices: Devices = None,
    prove: bool | str = True,
    split: Sequence[str | int] | None = None,
    per_device: bool = False,
    **arguments: Any,
) -> Any:
    """Loss and metrics of a compiled Keras model, on several devices; everything else is `model.evaluate`.

    The step stays with the model: a second call with such batches traces nothing.

    Args:
        model: a compiled model; a `test_step` of its own is run by every device on its slice.
        x, y, batch_size: what `model.evaluate` takes; `batch_size` is the global one.
        devices: how many devices, or which; all by default.
        prove: whether to hold the first batch against one device: predictions, or what a `test_step` of the
            model's own tells, must be equal to rounding. `"warn"` goes on where they are not.
        split: which inputs are cut over the devices, by their keys or places in `x` (see `cn.fit`).
        per_device: whether every device takes a whole batch of the data (see `cn.fit`).
        **arguments: whatever else `model.evaluate` takes.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile("sgd", "mse")
        >>> cn.evaluate(model, tf.ones([9, 2]), tf.ones([9, 1]), devices=2, verbose=0)
        1.0
    """
    how = How.chosen("evaluate()", devices, None, "auto", prove, split, per_device=per_device)
    check("evaluate()", how.problems_without_training(model, "test"))
    steps = ModelSteps(model, how, saying(arguments.get("verbose", "auto")))
    with lent(model, how.at_a_time, test_function=steps.test):
        scores = model.evaluate(x, y, batch_size=batch_size, **arguments)
    steps.keep()
    return scores


def predict(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    *,
    devices: Devices = None,
    prove: bool | str = True,
    split: Sequence[str | int] | None = None,
    per_device: bool = False,
    **arguments: Any,
) -> Any:
    """Predictions of a Keras model, on several devices, in order; everything else is `model.predict`.

    The step stays with the model: a second call with such batches traces nothing.

    Args:
        model: the model; a `predict_step` of its own is run by every device on its slice.
        x, batch_size: what `model.predict` takes; `batch_size` is the global one.
        devices: how many devices, or which; all by default.
        prove: whether to hold the first batch against one device: predictions must be equal to rounding.
            `"warn"` goes on where they are not.
        split: which inputs are cut over the devices, by their keys or places in `x` (see `cn.fit`).
        per_device: whether every device takes a whole batch of the data (see `cn.fit`).
        **arguments: whatever else `model.predict` takes.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        >>> cn.predict(model, tf.constant([[1.0], [2.0], [3.0]]), devices=2, verbose=0).tolist()
        [[1.0], [2.0], [3.0]]
    """
    how = How.chosen("predict()", devices, None, "auto", prove, split, per_device=per_device)
    check("predict()", how.problems_without_training(model, "predict"))
    steps = ModelSteps(model, how, saying(arguments.get("verbose", "auto")))
    with lent(model, how.at_a_time, predict_function=steps.predict):
        predictions = model.predict(x, batch_size=batch_size, **arguments)
    steps.keep()
    return predictions
