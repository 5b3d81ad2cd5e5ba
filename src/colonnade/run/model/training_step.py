"""The training step of a compiled Keras model as a function of a batch, for `cn.verify(model, ...)`."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.model.metrics import DeferredMetrics

# What `model.fit` takes of a batch.
BATCH = ("x", "y", "sample_weight")


class TrainingStep:
    """Loss and prediction of a model in training, and the metrics for them.

    The loss is one number, a mean over the batch, and gradients are those of the loss alone. There is no
    update; variables that a call of the model changes are for the caller to put back.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self.__name__ = model, f"training step of {model.name}"
        self._training = if_taken(model.call, training=True)
        self._training_of_loss = if_taken(model.compute_loss, training=True)

    def __call__(self, x: Any, y: Any = None, sample_weight: Any = None) -> dict[str, Any]:
        prediction = self._model(x, **self._training)
        with deferred(self._model):
            loss = self._model.compute_loss(x, y, prediction, sample_weight, **self._training_of_loss)
        return {"loss": loss, "prediction": tf.nest.map_structure(tf.stop_gradient, prediction)}

    def metrics(
        self, result: dict[str, Any], x: Any, y: Any = None, sample_weight: Any = None
    ) -> dict[str, Any]:
        """Those of a whole batch, by name, for what a step gave; their states stay as they are."""
        metrics = all_metrics(self._model)
        before = [(variable, variable.numpy()) for metric in metrics for variable in metric.variables]
        self._model.reset_metrics()
        values = self._model.compute_metrics(x, y, result["prediction"], sample_weight=sample_weight)
        self._model.reset_metrics()  # those that were made just now
        for variable, value in before:
            variable.assign(value)
        # Keras tells its means of losses too, which nobody has updated here.
        return {name: v for name, v in values.items() if name != "loss" and not name.endswith("_loss")}


def all_metrics(model: keras.Model) -> list[Any]:
    """Those of Keras, of which the first is that of the loss, and those of a `metrics` of the model."""
    known = [*keras.Model.metrics.fget(model), *model.metrics]
    return list({id(metric): metric for metric in known}.values())


def deferred(model: keras.Model, rows: int | None = None) -> DeferredMetrics:
    """The metrics of a model, which note what they are given by a slice of so many examples."""
    return DeferredMetrics(all_metrics(model), rows)


def step_of(fn: Any, args: Sequence[Any], kwargs: dict[str, Any], join: str) -> TrainingStep | None:
    """The training step of a compiled model that is given what `model.fit` takes; None for what is called."""
    if not isinstance(fn, keras.Model) or not set(kwargs) <= set(BATCH):
        return None
    if len(args) + len(kwargs) < 2:
        return None
    if not fn.compiled:
        check("verify()", _not_compiled(fn, args, kwargs))
        return None
    if join != "concat":
        rule, fix = "has no meaning for a training step, whose loss is a mean", "Leave it out"
        check("verify()", [Problem("join", join, rule, fix)])
    return TrainingStep(fn)


def _not_compiled(model: keras.Model, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Problem]:
    """A target that the call of a model would take for something else."""
    parameters = list(inspect.signature(model.call).parameters)
    second = parameters[1] if len(parameters) > 1 else "training"
    if (len(args) > 1 and second in ("training", "mask")) or not set(kwargs) <= set(parameters):
        rule = "is not compiled, so it has no loss for a target"
        yield Problem("model", model.name, rule, "Call model.compile(optimizer, loss) first, or pass x alone")


def if_taken(fn: Any, **options: Any) -> dict[str, Any]:
    """Of some options those that a function knows."""
    return {name: value for name, value in options.items() if name in inspect.signature(fn).parameters}


def has_own(model: keras.Model, name: str) -> bool:
    """Whether a model, or its class, has a method of its own in place of Keras's."""
    return getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name)


def plain_step(step: Callable[[Any], Any], model: keras.Model) -> Callable[[Any], Any]:
    """Of a step that is a tf.function the plain one: in a function inside of another no trace can be cut.

    It is what AutoGraph makes of it, as a tf.function does: branches and loops may depend on tensors.
    """
    function = getattr(step, "python_function", None)
    if function is None:
        return step
    method = inspect.unwrap(function, stop=inspect.ismethod)
    plain = method.__func__ if inspect.ismethod(method) else function
    with suppress(OSError, TypeError):  # without its source TensorFlow takes it as it is, too
        inspect.getsource(plain)
        plain = tf.autograph.to_graph(plain)
    return partial(plain, model) if inspect.ismethod(method) else plain
