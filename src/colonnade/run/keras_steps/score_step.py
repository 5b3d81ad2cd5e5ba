"""Keras's own `test_step` on several devices: predictions by slices, loss and metrics of the whole batch.

Predictions of slices are put together in order. Loss and metrics are computed from them once, for the whole
batch, as one device computes them: so they are Keras's, whatever the loss is.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import check
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.batch.widths import Widths
from colonnade.run.data.feed import on_host
from colonnade.run.keras_steps.added_kinds import SPREADS, at_random, with_inputs_at_random
from colonnade.run.keras_steps.forward import Asked, Forward, OnSlices, predicted
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.keras_steps.split_inputs import SplitInputs
from colonnade.run.model.metrics import MetricCalls, grows, update
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.model.training_step import BATCH, all_metrics, deferred, if_taken
from colonnade.run.model.whole_batch import (
    MEAN,
    SUM,
    AddedLosses,
    joined,
    masks_of,
    nothing,
    told_kinds,
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
        self._added = AddedLosses(adds=False)
        self._forward = Forward(self._predict, devices, asked)
        self._several = len(devices) > 1
        self._graphs: dict[Hashable, Any] = {}
        # Takes this one's place where a loss reads what the call has left in attributes, which is of a slice.
        self._on_slices: OwnStep | None = None
        self._devices, self._prover = devices, asked.prover
        self._noted: dict[int, MetricCalls] = {}  # by how many examples the model was called for
        # What layers add, as far as it is known; and what slices give, to look at that.
        self._widths, self._kinds = Widths(), list[str | None]()
        self._slices: dict[Hashable, OnSlices] = {}

    def __call__(self, iterator: Any) -> Any:
        logs: Any = {}
        for data in chain([next(iterator)], islice(iterator, self._model.steps_per_execution - 1)):
            logs = self.once(data)
        return logs

    def once(self, data: Any, coming: Any = None) -> Any:
        """What Keras tells of one batch."""
        if self._on_slices is not None:
            return self._on_slices.once(data)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(on_host(without_optionals(data)))
        batch = self._widths.opened(Arguments((self._split.marked(x), y, weight), {}, BATCH))
        if not self._forward.begin() or (None in self._kinds and self._adds(batch)):
            self._graphs = {}
        if batch.key() not in self._graphs:
            made = self._graph(batch)
            if any(map(tf.is_symbolic_tensor, made.graph.external_captures)):
                own = self._model, self._model.test_step, self._devices, self._prover, self._split
                self._on_slices = OwnStep(*own)
                return self._on_slices.once(data)
            self._graphs[batch.key()] = made
        return self._graphs[batch.key()](*batch.components())

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _predict(self, x: Any, y: Any, weight: Any) -> Any:
        rows = Arguments((self._split.marked(x),), {}, BATCH).size(self._where) or 0
        with remembered(), self._added.noted(rows, rows), deferred(self._model, rows) as called:
            prediction = self._model(x, **self._training)
            check(self._where, nothing(prediction, self._model.loss))
            if self._several:
                check(self._where, unjoined(prediction, rows))
        self._noted[rows] = called.noted
        return prediction, masks_of(prediction), self._added.values, called.values

    def _graph(self, batch: Arguments) -> Any:
        if self._kinds:
            # Layers still have what they added to another graph, and forget it when the model is called.
            self._forward.forget()
        counts = self._forward.counts(batch)
        results = self._forward.on_slices(batch, counts)
        layers = list(self._added.layers)
        if layers and (not self._kinds or None in self._kinds):
            self._slices[batch.key()] = results
            self._kinds = self._of_batch_and_slices(batch, counts)
        self._forward.examine(batch, self._compared)

        calls, of_all = [self._noted[count] for count in counts], self._noted.get(sum(counts))
        whole = None if of_all is None else (lambda: of_all)
        traced = []

        def score(*components: Any) -> Any:
            traced.append(True)
            given = batch.with_components(components)
            predictions, masks, added, values = zip(*results(given), strict=True)
            update(calls, values, [tf.constant(count) for count in counts], whole)
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

    def _adds(self, batch: Arguments) -> bool:
        """Whether slices of a batch add anything; of 0 nobody needs to know whether it is a sum."""
        on_slices = self._slices.get(batch.key())
        if on_slices is None:  # it has no graph yet
            return False
        with self._forward.kept():
            return any(any(map(float, added)) for _, _, added, _ in on_slices(batch))

    def _of_batch_and_slices(self, batch: Arguments, counts: Sequence[int]) -> list[str | None]:
        """Whether layers add sums or means, as far as a batch tells, or numbers at random in its place."""
        told: list[str | None] = [MEAN if zero else None for zero in self._added.zeros]
        if len(counts) == 1:
            return told
        try:
            return self._told_by(batch, counts, told)
        except tf.errors.ResourceExhaustedError:  # one device has no room for it, but for a slice
            if counts[0] < 2:
                raise
            return self._told_by(batch.rows(range(counts[0])), sizes(counts[0], 2), told)

    def _told_by(self, batch: Arguments, counts: Sequence[int], told: list[str | None]) -> list[str | None]:
        both = [self._forward.on_slices(batch, each) for each in ([sum(counts)], counts)]
        for given, values in self._looks(batch):
            if None not in told:
                break
            with self._assigned(values):
                (whole,), parts = (self._values(on_slices, given) for on_slices in both)
            found = told_kinds(whole, parts, counts, 1e-6)
            told = [one or other for one, other in zip(told, found, strict=True)]
        return told

    def _looks(self, batch: Arguments) -> Iterator[tuple[Arguments, dict[Any, Any]]]:
        """A batch, and values for variables (see `added_kinds`)."""
        read = [v.value for v in self._model.variables if tf.as_dtype(v.dtype).is_floating]
        yield batch, {}
        yield batch, {v.ref(): tf.ones_like(v) for v in read if not np.any(v.numpy())}
        for number, spread in enumerate(SPREADS):
            rng = np.random.default_rng(number)
            values = {v.ref(): at_random(v, rng, 1.0) for v in read}
            yield with_inputs_at_random(batch, rng, spread), values

    @contextmanager
    def _assigned(self, values: Mapping[Any, Any]) -> Iterator[None]:
        before = {ref: ref.deref().read_value() for ref in values}
        for ref, value in values.items():
            ref.deref().assign(value)
        try:
            yield
        finally:
            for ref, value in before.items():
                ref.deref().assign(value)

    def _values(self, on_slices: OnSlices, batch: Arguments) -> list[list[float]]:
        """What layers add, for each slice."""
        with self._forward.kept():
            return [[float(value) for value in added] for _, _, added, _ in on_slices(batch)]


def _of_batch(parts: Sequence[Any], counts: Sequence[int]) -> np.ndarray:
    """What a metric is given for the whole batch: a value for each example, a count, or a mean."""
    arrays = [dense(part) for part in parts]
    if len(arrays) == 1 or (arrays[0].ndim and grows([len(array) for array in arrays], counts)):
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    floating = parts[0].dtype.is_floating
    whole = np.average(arrays, axis=0, weights=counts) if floating else np.sum(arrays, axis=0)
    return np.asarray(whole, arrays[0].dtype)


def _combined(values: Sequence[Any], kind: str | None, counts: Sequence[int]) -> Any:
    """What the whole batch adds."""
    weights = [1.0 if kind == SUM else count / sum(counts) for count in counts]
    return tf.add_n([v * tf.constant(w, v.dtype) for v, w in zip(values, weights, strict=True)])
