"""Keras's own `test_step` on several devices: predictions by slices, loss and metrics of the whole batch.

Predictions of slices are put together in order. Loss and metrics are computed from them once, for the whole
batch, as one device computes them: so they are Keras's, whatever the loss is.
"""

from collections.abc import Hashable, Sequence
from itertools import chain, islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import check
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.widths import Widths
from colonnade.run.data.feed import on_host
from colonnade.run.keras_steps.forward import Asked, Forward, OnSlices, predicted
from colonnade.run.keras_steps.split_inputs import SplitInputs
from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.model.training_step import BATCH, all_metrics, deferred, if_taken
from colonnade.run.model.whole_batch import (
    AddedLosses,
    joined,
    kinds,
    masks_of,
    nothing,
    unjoined,
    with_masks,
)
from colonnade.run.parallel.gap import dense
from colonnade.run.parallel.tolerance import Values, unlike
from colonnade.run.trace.concrete import hosted
from colonnade.run.trace.replica_context import remembered


class ScoreStep:
    """What Keras calls for every batch that it evaluates.

    Args:
        model: a compiled model.
        devices: where the slices go.
        split: which inputs are cut.
        asked: by whom, for messages.
    """

    def __init__(self, model: keras.Model, devices: Sequence[str], split: SplitInputs, asked: Asked) -> None:
        self._model, self._where, self._split = model, asked.where, split
        self._training = if_taken(model.call, training=False)
        self._training_of_loss = if_taken(model.compute_loss, training=False)
        self._added, self._called = AddedLosses(adds=False), DeferredMetrics([])
        self._forward = Forward(self._predict, devices, asked)
        self._several = len(devices) > 1
        self._graphs: dict[Hashable, Any] = {}
        self._widths, self._kinds = Widths(), list[str]()

    def __call__(self, iterator: Any) -> Any:
        logs: Any = {}
        for data in chain([next(iterator)], islice(iterator, self._model.steps_per_execution - 1)):
            logs = self.once(data)
        return logs

    def once(self, data: Any, coming: Any = None) -> Any:
        """What Keras tells of one batch."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(on_host(without_optionals(data)))
        batch = self._widths.opened(Arguments((self._split.marked(x), y, weight), {}, BATCH))
        if not self._forward.begin():
            self._graphs = {}
        if batch.key() not in self._graphs:
            self._graphs[batch.key()] = self._graph(batch)
        return self._graphs[batch.key()](*batch.components())

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _predict(self, x: Any, y: Any, weight: Any) -> Any:
        rows = Arguments((self._split.marked(x),), {}, BATCH).size(self._where) or 0
        self._called = deferred(self._model, rows)
        with remembered(), self._added.noted(rows, rows), self._called as called:
            prediction = self._model(x, **self._training)
            check(self._where, nothing(prediction, self._model.loss))
            if self._several:
                check(self._where, unjoined(prediction, rows))
        return prediction, masks_of(prediction), self._added.values, called.values

    def _graph(self, batch: Arguments) -> Any:
        if self._kinds:
            # Layers still have what they added to another graph, and forget it when the model is called.
            self._forward.forget()
        counts = self._forward.counts(batch)
        results = self._forward.on_slices(batch, counts)
        layers, called = list(self._added.layers), self._called
        if layers and not self._kinds:
            self._kinds = self._of_batch_and_slices(batch, results, counts)
        self._forward.examine(batch, self._compared)

        traced = []

        def score(*components: Any) -> Any:
            traced.append(True)
            given = batch.with_components(components)
            predictions, masks, added, values = zip(*results(given), strict=True)
            called.make(values, [tf.constant(count) for count in counts])
            prediction = with_masks(joined(predictions, self._where), joined(masks))
            for layer, loss in zip(layers, self._of_layers(added, counts), strict=True):
                layer.add_loss(tf.cast(loss, keras.config.floatx()))
            (x, y, weight), _ = given.unpack(components)
            # As in training: to Keras, the loss of an output is one number, whatever the size of a batch.
            own = deferred(self._model)
            with own as noted:
                loss = self._model.compute_loss(x, y, prediction, weight, **self._training_of_loss)
            own.make([noted.values], [tf.constant(sum(counts))])
            all_metrics(self._model)[0].update_state(loss, sample_weight=sum(counts))
            return self._model.compute_metrics(x, y, prediction, sample_weight=weight)

        made = hosted(score, *batch.specs())
        if layers and len(traced) > 1:
            # Metrics were made, for which TensorFlow traces twice, and layers have added twice.
            return self._graph(batch)
        return made

    def _compared(self, results: Sequence[Any], counts: Sequence[int]) -> Values:
        """What loss and metrics of a batch are computed from, told from its slices."""
        predictions, _, added, values = zip(*results, strict=True)
        compared = predicted(predictions, self._where)
        for layer, loss in zip(self._added.layers, self._of_layers(added, counts), strict=True):
            compared[unlike(compared, f"add_loss {layer.name}")] = np.asarray(loss)
        given = [_of_batch(parts, counts) for parts in zip(*values, strict=True)]
        return compared | {f"metric {i}": value for i, value in enumerate(given)}

    def _of_layers(self, added: Sequence[Sequence[Any]], counts: Sequence[int]) -> list[Any]:
        """What layers add for the whole batch, told from what they add for slices."""
        return [
            _combined(values, kind, counts)
            for kind, values in zip(self._kinds, zip(*added, strict=True), strict=True)
        ]

    def _of_batch_and_slices(self, batch: Arguments, on_slices: OnSlices, counts: Sequence[int]) -> list[str]:
        """Whether layers add sums or means."""
        on_whole = self._forward.on_slices(batch, [sum(counts)])
        with self._forward.kept():
            ((_, _, whole, _),) = on_whole(batch)
        with self._forward.kept():
            parts = [[float(value) for value in added] for _, _, added, _ in on_slices(batch)]
        return kinds([float(value) for value in whole], parts, counts, 1e-6)


def _of_batch(parts: Sequence[Any], counts: Sequence[int]) -> np.ndarray:
    """What a metric is given for the whole batch: a value for each example, a count, or a mean."""
    arrays = [dense(part) for part in parts]
    if arrays[0].ndim:
        return np.concatenate(arrays)
    whole = np.average(arrays, weights=counts) if parts[0].dtype.is_floating else np.sum(arrays)
    return np.asarray(whole, arrays[0].dtype)


def _combined(values: Sequence[Any], kind: str, counts: Sequence[int]) -> Any:
    """What the whole batch adds."""
    weights = [1.0 if kind == "sum" else count / sum(counts) for count in counts]
    return tf.add_n([v * tf.constant(w, v.dtype) for v, w in zip(values, weights, strict=True)])
