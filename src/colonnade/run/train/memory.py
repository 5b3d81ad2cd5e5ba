"""`cn.memory`: how much memory a training would take on each device, before it runs."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.memory.estimate import Memory
from colonnade.run.parallel.parallel import Devices
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.train.trainer import Trainer


def memory(
    fn: Callable[..., Any],
    batch: Any,
    *,
    optimizer: Any = None,
    devices: Devices | Pipeline = 1,
    variables: str = "auto",
) -> Memory:
    """Estimate what a training step takes on each device: parameters, slots, gradients, activations.

    The step is rehearsed in a process of its own, on zeros of the same shapes, where TensorFlow's
    allocator tells how much it gave out. So it takes some seconds, and nothing of yours changes. It is an
    estimate: TensorFlow runs ops in no fixed order, and a card has other needs than the CPU.

    Args:
        fn: a loss function, as for `cn.Trainer`, or a Keras model.
        batch: a global batch: what `fn` is called with, a tuple if it takes several arguments.
        optimizer: a Keras optimizer; that of a compiled model, or one without slots, by default.
        devices: as for `cn.Trainer`; one device by default.
        variables: as for `cn.Trainer`.

    Returns:
        A `Memory`: a line per device. `print` it for a table.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.Input([64]), keras.layers.Dense(256), keras.layers.Dense(1)])
        >>> estimate = cn.memory(model, tf.ones([32, 64]), optimizer=keras.optimizers.Adam())
        >>> device = estimate.devices[0]
        >>> device.parameters == 4 * model.count_params(), 2 <= device.slots / device.parameters < 2.1
        (True, True)
    """
    check("memory()", _problems(fn))
    if isinstance(fn, keras.Model):
        optimizer = optimizer or getattr(fn, "optimizer", None)
        fn = loss_of(fn)
    trainer = Trainer(fn, optimizer or keras.optimizers.SGD(), devices=devices, variables=variables)
    return trainer.memory(*(batch if isinstance(batch, tuple) else (batch,)))


def _problems(fn: Any) -> Iterator[Problem]:
    if not callable(fn):
        yield Problem("fn", fn, "must be a loss function or a Keras model", "Pass the function itself")


def loss_of(model: keras.Model) -> Callable[..., Any]:
    """Something to differentiate: the mean of all that a model puts out for an example."""

    def loss(*inputs: Any) -> Any:
        outputs = tf.nest.flatten(model(*inputs, training=True))
        smooth = [tf.cast(t, tf.float32) for t in outputs if t.dtype.is_floating]
        return tf.add_n([tf.reduce_mean(tf.reshape(t, [tf.shape(t)[0], -1]), axis=1) for t in smooth])

    return loss
