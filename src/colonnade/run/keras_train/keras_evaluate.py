"""`cn.evaluate(model, ...)` and `cn.predict(model, ...)`: Keras's own, with every batch on all devices.

Predictions of slices are put together in order. Loss and metrics are computed from them once, for the whole
batch, as one device computes them: so they are Keras's, whatever the loss is.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.batch.widths import Widths
from colonnade.run.keras_steps.group_step import CutOrWhole, GroupStep
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.keras_steps.split_inputs import SplitInputs, split_problems
from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.training_step import BATCH, all_metrics, has_own, if_taken
from colonnade.run.model.whole_batch import AddedLosses, joined, kinds, masks_of, unjoined, with_masks
from colonnade.run.move.reduce import star
from colonnade.run.parallel.parallel import Devices
from colonnade.run.prove.verdict import Prover
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.replica_context import remembered
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import call_with_sums, problems
from colonnade.run.variables.homes import Homes


def evaluate(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    devices: Devices = None,
    split: Sequence[str | int] | None = None,
    per_device: bool = False,
    **arguments: Any,
) -> Any:
    """Loss and metrics of a compiled Keras model, on several devices; everything else is `model.evaluate`.

    Args:
        model: a compiled model; a `test_step` of its own is run by every device on its slice.
        x, y: what `model.evaluate` takes.
        devices: how many devices, or which; all by default.
        split: which inputs are cut over the devices, by their keys or places in `x` (see `cn.fit`).
        per_device: whether every device takes a whole batch of the data (see `cn.fit`).
        **arguments: whatever else `model.evaluate` takes; `batch_size` is the global one.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        >>> model.compile("sgd", "mse")
        >>> cn.evaluate(model, tf.ones([9, 2]), tf.ones([9, 1]), devices=2, verbose=0)
        1.0
    """
    chosen = hardware.resolve(devices, "evaluate()")
    check("evaluate()", [*_problems(model, compiled=True), *split_problems(split)])
    cut = SplitInputs(None if split is None else tuple(split))
    model.test_function = test_step(model, chosen, "evaluate()", cut, per_device=per_device)
    at_once = model.steps_per_execution
    model.steps_per_execution = at_once * (len(chosen) if per_device else 1)
    try:
        return model.evaluate(x, y, **arguments)
    finally:
        model.test_function = None
        model.steps_per_execution = at_once


def predict(model: keras.Model, x: Any, *, devices: Devices = None, **arguments: Any) -> Any:
    """Predictions of a Keras model, on several devices, in order; everything else is `model.predict`.

    Args:
        model: the model; a `predict_step` of its own is run by every device on its slice.
        x: what `model.predict` takes.
        devices: how many devices, or which; all by default.
        **arguments: whatever else `model.predict` takes; `batch_size` is the global one.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        >>> cn.predict(model, tf.constant([[1.0], [2.0], [3.0]]), devices=2, verbose=0).tolist()
        [[1.0], [2.0], [3.0]]
    """
    chosen = hardware.resolve(devices, "predict()")
    check("predict()", _problems(model, compiled=False))
    model.predict_function = _Predictions(model, chosen)
    try:
        return model.predict(x, **arguments)
    finally:
        model.predict_function = None


def test_step(
    model: keras.Model,
    devices: Sequence[str],
    where: str,
    split: SplitInputs,
    *,
    per_device: bool,
) -> Callable[[Any], Any]:
    """What Keras is to call for every batch that it evaluates."""
    whole = GroupStep(model, model.test_step, devices)
    if per_device:
        return whole
    own = has_own(model, "test_step")
    step = (
        OwnStep(model, model.test_step, devices, Prover(False, where, print), split)
        if own
        else _Scores(model, devices, where, split)
    )
    return step if len(devices) > 1 or split.named is not None else CutOrWhole(step, whole)


class _Forward:
    """A function of a batch that each device computes for its slice, with the variables as they are."""

    def __init__(self, fn: Callable[..., Any], devices: Sequence[str], where: str) -> None:
        self._devices, self._where = tuple(devices), where
        self._traces = TraceCache(lambda part, voice: Traced(fn, part, voice), devices)
        # Variables are read where they are; what the function changes, it changes in a copy.
        self._homes = Homes("shared", devices, [], [])
        self.counts: tuple[int, ...] = ()

    def on_slices(self, batch: Arguments, num_slices: int | None = None) -> Callable[[Arguments], list[Any]]:
        """A function that gives what each slice of such a batch gives; made in eager code."""
        rows = batch.size(self._where) or 0
        counts = self.counts = sizes(rows, num_slices or len(self._devices))
        traces = [self._traces.of_replica(batch.resized(n), i, len(counts)) for i, n in enumerate(counts)]
        check(self._where, problems(traces))
        bound = [self._homes.bindings(i, traced.captures) for i, traced in enumerate(traces)]

        def results(given: Arguments) -> list[Any]:
            parts = [part.components() for part in given.parts(counts)]
            working = self._devices[: len(counts)]
            leaves = call_with_sums(traces, working, parts, bound, star(len(counts)))
            return [traced.pack(each) for traced, each in zip(traces, leaves, strict=True)]

        return results


class _Scores:
    """Keras's own `test_step`: predictions by slices, loss and metrics of the whole batch."""

    def __init__(self, model: keras.Model, devices: Sequence[str], where: str, split: SplitInputs) -> None:
        self._model, self._where, self._split = model, where, split
        self._training = if_taken(model.call, training=False)
        self._training_of_loss = if_taken(model.compute_loss, training=False)
        self._added = AddedLosses(adds=False)
        self._forward = _Forward(self._predict, devices, where)
        self._several = len(devices) > 1
        self._graphs: dict[Hashable, Any] = {}
        self._widths, self._kinds = Widths(), list[str]()

    def __call__(self, iterator: Any) -> Any:
        logs: Any = {}
        for data in chain([next(iterator)], islice(iterator, self._model.steps_per_execution - 1)):
            logs = self.once(data)
        return logs

    def once(self, data: Any) -> Any:
        """What Keras tells of one batch."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        batch = self._widths.opened(Arguments((self._split.marked(x), y, weight), {}, BATCH))
        if batch.key() not in self._graphs:
            self._graphs[batch.key()] = self._graph(batch)
        return self._graphs[batch.key()](*batch.components())

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _predict(self, x: Any, y: Any, weight: Any) -> Any:
        rows = Arguments((self._split.marked(x),), {}, BATCH).size(self._where) or 0
        with remembered(), self._added.noted(rows, rows):
            prediction = self._model(x, **self._training)
            if self._several:
                check(self._where, unjoined(prediction, rows))
        return prediction, masks_of(prediction), self._added.values

    def _graph(self, batch: Arguments) -> Any:
        results = self._forward.on_slices(batch)
        counts, layers = self._forward.counts, list(self._added.layers)
        if layers and not self._kinds:
            self._kinds = self._of_batch_and_slices(batch, results(batch), counts)

        def score(*components: Any) -> Any:
            given = batch.with_components(components)
            predictions, masks, added = zip(*results(given), strict=True)
            prediction = with_masks(joined(predictions), joined(masks))
            for layer, kind, values in zip(layers, self._kinds, zip(*added, strict=True), strict=True):
                layer.add_loss(_combined(values, kind, counts))
            (x, y, weight), _ = given.unpack(components)
            # As in training: to Keras, the loss of an output is one number, whatever the size of a batch.
            deferred = DeferredMetrics(all_metrics(self._model))
            with deferred as noted:
                loss = self._model.compute_loss(x, y, prediction, weight, **self._training_of_loss)
            deferred.make([noted.values], [tf.constant(sum(counts))])
            all_metrics(self._model)[0].update_state(loss, sample_weight=sum(counts))
            return self._model.compute_metrics(x, y, prediction, sample_weight=weight)

        return concrete(score, *batch.specs())

    def _of_batch_and_slices(
        self, batch: Arguments, slices: Sequence[Any], counts: Sequence[int]
    ) -> list[str]:
        """Whether layers add sums or means."""
        ((_, _, whole),) = self._forward.on_slices(batch, 1)(batch)
        parts = [[float(value) for value in added] for _, _, added in slices]
        return kinds([float(value) for value in whole], parts, counts, 1e-6)


class _Predictions:
    """Keras's `predict_step`, or the model's own, by slices."""

    def __init__(self, model: keras.Model, devices: Sequence[str]) -> None:
        self._model, self._several = model, len(devices) > 1
        self._forward = _Forward(self._predict, devices, "predict()")
        self._graphs: dict[Hashable, Any] = {}
        self._widths = Widths()

    def __call__(self, data: Sequence[Any]) -> Any:
        parts = [self._of_batch(batch) for batch in data]
        return parts[0] if len(parts) == 1 else tf.nest.map_structure(lambda *p: np.concatenate(p), *parts)

    @tf.autograph.experimental.do_not_convert
    def _predict(self, data: Any) -> Any:
        with remembered():
            prediction = self._model.predict_step(data)
            if self._several:
                rows = Arguments((data,), {}, ("x",)).size("predict()") or 0
                check("predict()", unjoined(prediction, rows))
        return prediction

    def _of_batch(self, data: Any) -> Any:
        batch = self._widths.opened(Arguments((data,), {}, ("x",)))
        if batch.key() not in self._graphs:
            results = self._forward.on_slices(batch)
            self._graphs[batch.key()] = concrete(
                lambda *components: joined(results(batch.with_components(components))), *batch.specs()
            )
        return self._graphs[batch.key()](*batch.components())


def _combined(values: Sequence[Any], kind: str, counts: Sequence[int]) -> Any:
    """What the whole batch adds, in the floats of Keras."""
    weights = [1.0 if kind == "sum" else count / sum(counts) for count in counts]
    total = tf.add_n([v * tf.constant(w, v.dtype) for v, w in zip(values, weights, strict=True)])
    return tf.cast(total, keras.config.floatx())


def _problems(model: Any, *, compiled: bool) -> Iterator[Problem]:
    if not isinstance(model, keras.Model):
        yield Problem("model", type(model).__name__, "must be a Keras model", "Use cn.parallel for functions")
        return
    if compiled and not model.compiled:
        yield Problem("model", model.name, "is not compiled", "Call model.compile(optimizer, loss) first")
    if model.compiled and model.run_eagerly:
        yield Problem("model", model.name, "is compiled with run_eagerly=True", "Compile it without")
