"""`cn.fit(model, ...)` in place of `model.fit(...)`, for a compiled Keras model.

Keras keeps everything around the step: epochs, shuffling, callbacks, validation, history. Only the
step itself, which Keras asks `model.train_function` for, is Colonnade's.
"""

import inspect
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.protocols import Outcome, Settings, Sync, home, sync_problems
from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.training_step import BATCH, all_metrics
from colonnade.run.parallel.parallel import Devices
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.train.additivity import Losses, joined, problems
from colonnade.run.train.keras_profile import profiled_by
from colonnade.run.train.profiling import profile_problems

# With these the loss of a batch is the mean of its slices' losses, weighted by their sizes.
EXACT_REDUCTIONS = ("sum_over_batch_size", "mean")
# These are quotients of sums over their dims, by default over the examples too.
QUOTIENTS = (keras.losses.Dice, keras.losses.Tversky)
QUOTIENTS_OF_ALL = ("dice", "Dice", "tversky", "Tversky", keras.losses.dice, keras.losses.tversky)
# These compare every example with every other.
PAIRWISE = (keras.losses.Circle,)
PAIRWISE_NAMES = ("circle", "Circle", keras.losses.circle)


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    devices: Devices = None,
    sync: Sync | None = None,
    variables: str = "auto",
    profile: range | None = None,
    **arguments: Any,
) -> Any:
    """Train a compiled Keras model on several devices; everything else is `model.fit`.

    Metrics and the loss are those of the whole batch, and a model's own losses (regularisers) count
    once. Validation runs on one device. Keras may look at the model after every step, so local replicas
    are averaged for it, and asynchronous devices finish a batch before the next one.

    Args:
        model: a compiled model.
        x, y: what `model.fit` takes: arrays, tensors, a dataset.
        devices: how many devices, or which; all by default.
        sync: how replicas work together, as for `cn.Trainer`.
        variables: where variables live: auto, shared, mirrored or partitioned.
        profile: steps, counted from 1, of which to record where the time goes, such as `range(10, 15)`; what
            came of it is in `timeline` of what is returned.
        **arguments: whatever else `model.fit` takes; `batch_size` is the global one.

    Returns:
        Keras's `History`.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> history = cn.fit(model, tf.ones([8, 2]), tf.ones([8, 1]), devices=2, epochs=2, verbose=0)
        >>> len(history.history["loss"])
        2
    """
    check("fit()", [*_of_the_trainer(arguments), *profile_problems(profile)])
    chosen, sync = hardware.resolve(devices, "fit()"), Synchronous() if sync is None else sync
    check("fit()", [*sync_problems(sync, variables, len(chosen)), *_problems(model, len(chosen))])
    step = model.train_function = _Step(model, chosen, sync, home(sync, variables, chosen))
    watching = profiled_by(profile, chosen, arguments)
    try:
        history = model.fit(x, y, **arguments)
        if watching is not None:
            history.timeline = watching.timeline
        return history
    except TypeError:
        if model.train_function is step:
            raise
        # Keras forgot the step, and called None.
        rule = "was compiled again while it was trained, by a callback; model.fit cannot go on then either"
        fix = "End the training (model.stop_training = True), compile, and call cn.fit again"
        raise InvalidArgument("fit()", [Problem("model", model.name, rule, fix)]) from None
    finally:
        model.train_function = None
        if watching is not None:
            watching.abandon()


class _Step:
    """What Keras calls for every batch: one step on all devices."""

    def __init__(self, model: keras.Model, devices: tuple[str, ...], sync: Sync, mode: str) -> None:
        self._model = model
        self._takes_training = "training" in inspect.signature(model.call).parameters
        self._loss_takes_training = "training" in inspect.signature(model.compute_loss).parameters
        self._num_devices = len(devices)
        self._masked: list[str] = []  # outputs with a mask
        # What the loss does to metrics; Keras has built them all by the first step.
        self._deferred = DeferredMetrics([])
        settings = Settings(
            self._loss,
            model.optimizer,
            devices,
            mode,
            on_nan=None,  # Keras goes on, and its callbacks decide (TerminateOnNaN)
            trainable=self._trained,
        )
        self._engine = sync.engine(settings)
        self._loop = self._engine.loop(self._metrics)
        self._measured = tf.function(self._measure, autograph=False)
        self._examined = len(devices) == 1  # whether the loss of a batch is known to be that of its slices

    def __call__(self, iterator: Any) -> dict[str, Any]:
        logs: dict[str, Any] = {}
        # The last execution of an epoch may have fewer steps.
        for batch in chain([next(iterator)], islice(iterator, self._model.steps_per_execution - 1)):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            arguments = Arguments((x, y, weight), {}, BATCH)
            check("fit()", self._missing(y))
            self._examine(arguments)
            self._engine.enter()
            logs = self._loop.once(arguments)
            self._engine.leave()
        return logs

    def _loss(self, x: Any, y: Any, weight: Any) -> tuple[Any, dict[str, Any], Any]:
        prediction = self._predict(x, True)
        self._note_masks(prediction)
        self._deferred = DeferredMetrics(all_metrics(self._model))
        with self._deferred as noted:
            loss = self._total(x, y, prediction, weight, True)
        return loss, {}, (prediction, noted.values, self._count(x, y, weight))

    @tf.autograph.experimental.do_not_convert
    def _count(self, *batch: Any) -> Any:
        """How many examples a slice has."""
        return tf.constant(Arguments(batch, {}, BATCH).size("fit()"))

    @tf.autograph.experimental.do_not_convert
    def _predict(self, x: Any, training: bool) -> Any:
        prediction = self._model(x, training=training) if self._takes_training else self._model(x)
        if self._num_devices > 1:
            check("fit()", _unjoined(prediction, Arguments((x,), {}, BATCH).size("fit()")))
        return prediction

    def _total(self, x: Any, y: Any, prediction: Any, weight: Any, training: bool) -> Any:
        options = {"training": training} if self._loss_takes_training else {}
        loss = self._model.compute_loss(x, y, prediction, weight, **options)
        self._check_scalar(loss)
        return loss

    @tf.autograph.experimental.do_not_convert
    def _check_scalar(self, loss: Any) -> None:
        shape = getattr(loss, "shape", ())
        if len(shape):
            rule = f"is a tensor of shape {tuple(shape)}, whose sum Keras would differentiate"
            name, value = self._source()
            raise InvalidArgument("fit()", [Problem(name, value, rule, "Return one number: the mean")])

    def _missing(self, y: Any) -> Iterator[Problem]:
        if y is None and self._model.loss is not None and not self._own_loss:
            rule = f"is missing, and the model is compiled with loss={self._source()[1]!r}"
            yield Problem("y", None, rule, "Pass y, or a dataset of (x, y)")

    def _examine(self, batch: Arguments) -> None:
        """Before anything is trained: whether the loss is one that can be computed by slices."""
        rows = batch.size("fit()") or 0
        if self._examined or rows < 2:
            return
        losses = Losses(self._predict, self._quiet_total, self._parts)
        num_slices, device = min(len(self._engine.devices), rows), self._engine.devices[0]
        check("fit()", problems(losses, batch, num_slices, device, self._source()))
        self._examined = True

    @property
    def _own_loss(self) -> bool:
        return getattr(self._model.compute_loss, "__func__", None) is not keras.Model.compute_loss

    def _quiet_total(self, *arguments: Any) -> Any:
        with DeferredMetrics(all_metrics(self._model)):
            return self._total(*arguments)

    def _parts(self) -> tuple[Any, dict[str, Any]]:
        """After a call, the sum of the losses that belong to weights alone, and what each layer added."""
        losses, again = self._model.losses, {id(loss): loss for loss in self._model.losses}
        # Keras computes those of weights whenever it is asked; what was added in a call, it keeps.
        added = [loss for loss in losses if id(loss) in again]
        of_weights = sum((_number(loss) for loss in losses if id(loss) not in again), tf.zeros([]))
        names = [self._layer_of(loss) for loss in added]
        values = {name: tf.zeros([]) for name in names}
        for name, loss in zip(names, added, strict=True):
            values[name] += _number(loss)
        return of_weights, values

    def _layer_of(self, loss: Any) -> str:
        having = [layer.name for layer in self._model.layers if any(loss is other for other in layer.losses)]
        return having[0] if having else self._model.name

    def _source(self) -> tuple[str, Any]:
        """What says how the loss is computed."""
        if self._own_loss:
            return "compute_loss", type(self._model).__name__
        names = [_name(loss) for loss in tf.nest.flatten(self._model.loss)]
        return "loss", names[0] if len(names) == 1 else names

    def _note_masks(self, prediction: Any) -> None:
        """Keras leaves a mask on the output, and its losses do not count what is masked."""
        outputs = tf.nest.flatten(prediction)
        self._masked = [o.name for o in outputs if getattr(o, "_keras_mask", None) is not None]

    def _trained(self, used: Sequence[tf.Variable]) -> list[tf.Variable]:
        if self._num_devices > 1 and self._masked:
            rule = "has a mask at its output, so slices with more masked would count too much"
            fix = "Use cn.Trainer with cn.Weighted(losses, mask)"
            raise InvalidArgument("fit()", [Problem("model", self._model.name, rule, fix)])
        trained = {variable.value.ref() for variable in self._model.trainable_variables}
        return [variable for variable in used if variable.ref() in trained]

    def _metrics(self, outcome: Outcome, batch: Arguments) -> Any:
        """Loss and metrics of the whole batch, as Keras keeps them."""
        (x, y, weight), _ = batch.unpack(batch.components())
        # Part of the graph of a step, or a graph of its own where a step is none.
        measure = self._measured if tf.executing_eagerly() else self._measure
        return measure(outcome.loss, outcome.outputs, x, y, weight, batch.size("fit()"))

    def _measure(self, loss: Any, outputs: Any, x: Any, y: Any, weight: Any, rows: int | None) -> Any:
        predictions, noted, counts = zip(*outputs, strict=True)
        prediction = joined(predictions)
        self._deferred.make(noted, counts)
        all_metrics(self._model)[0].update_state(loss, sample_weight=rows)
        return self._model.compute_metrics(x, y, prediction, sample_weight=weight)


def _of_the_trainer(arguments: dict[str, Any]) -> Iterator[Problem]:
    if "checkpoint" in arguments:
        rule = "is for cn.Trainer; here the loop and the place in the data are Keras's"
        fix = (
            "Pass callbacks=[keras.callbacks.BackupAndRestore(directory)], or use cn.Trainer to go on exactly"
        )
        yield Problem("checkpoint", arguments["checkpoint"], rule, fix)


def _unjoined(prediction: Any, rows: int | None) -> Iterator[Problem]:
    """Outputs of a model that are not one for each example, so that those of slices cannot be joined."""
    for i, output in enumerate(tf.nest.flatten(prediction)):
        shape = None if output is None else tuple(output.shape)
        if shape is not None and (not shape or shape[0] not in (None, rows)):
            what = "a number" if not shape else f"of shape {shape}"
            rule = f"is {what} for a slice of {rows} examples, whose first dim must be that of the examples"
            fix = "Return one value for each example, or train on one device: devices=1"
            yield Problem("output of the model", i, rule, fix)


def _distributed(model: keras.Model) -> Iterator[Problem]:
    """A model or a call in the scope of one of TensorFlow's strategies."""
    rule = "has devices of its own, and cn.fit brings its own too"
    if tf.distribute.has_strategy():
        name = type(tf.distribute.get_strategy()).__name__
        yield Problem("strategy", name, rule, "Call cn.fit outside of its scope")
        return
    strategies = (
        [model.distribute_strategy] if model.distribute_strategy is not tf.distribute.get_strategy() else []
    )
    mirrored = [v for v in model.variables if isinstance(v.value, tf.distribute.DistributedValues)]
    if strategies or mirrored:
        value = type(strategies[0]).__name__ if strategies else mirrored[0].path
        yield Problem("strategy", value, rule, "Make the model outside of its scope; cn.fit needs none")


def _problems(model: Any, num_devices: int) -> Iterator[Problem]:
    if not isinstance(model, keras.Model):
        yield Problem("model", type(model).__name__, "must be a Keras model", "Use cn.Trainer for functions")
        return
    if not model.compiled or model.optimizer is None:
        yield Problem("model", model.name, "is not compiled", "Call model.compile(optimizer, loss) first")
        return
    yield from _distributed(model)
    for name in ("train_step", "make_train_function"):
        if getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name):
            rule = f"has a {name} of its own, which is written for one device"
            yield Problem("model", model.name, rule, "Put its loss into a function for cn.Trainer")
    if model.run_eagerly:
        yield Problem("model", model.name, "is compiled with run_eagerly=True", "Compile it without")
    for loss in tf.nest.flatten(model.loss):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if num_devices > 1 and reduction not in EXACT_REDUCTIONS:
            rule = f"has reduction={reduction!r}, which is not the mean of the slices' losses"
            fix = "Use sum_over_batch_size, or cn.Trainer with cn.Weighted"
            yield Problem("loss", _name(loss), rule, fix)
        if num_devices > 1 and getattr(loss, "ignore_class", None) is not None:
            rule = f"has ignore_class={loss.ignore_class}, so slices with more of it would count too much"
            fix = "Use cn.Trainer with cn.Weighted(losses, weights), which weigh 0 where it is"
            yield Problem("loss", _name(loss), rule, fix)
        if num_devices > 1 and _is_quotient(loss):
            rule = "is a quotient of sums over all examples, which is not the mean of the slices' losses"
            yield Problem("loss", _name(loss), rule, "Give it axis=... without 0")
        if num_devices > 1 and (isinstance(loss, PAIRWISE) or loss in PAIRWISE_NAMES):
            rule = "compares all examples of a batch with each other, and a slice has only some of them"
            yield Problem("loss", _name(loss), rule, "Train with it on one device: devices=1")


def _number(loss: Any) -> Any:
    """A loss as Keras adds it to others."""
    return tf.reduce_sum(tf.cast(loss, tf.float32))


def _name(loss: Any) -> Any:
    """A loss is an object, a function or a name."""
    return getattr(loss, "name", getattr(loss, "__name__", loss))


def _is_quotient(loss: Any) -> bool:
    if isinstance(loss, QUOTIENTS):
        return loss.axis is None or 0 in tf.nest.flatten(loss.axis)
    return loss in QUOTIENTS_OF_ALL
