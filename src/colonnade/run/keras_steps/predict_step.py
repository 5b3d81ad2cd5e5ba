"""Keras's `predict_step`, or one of the model's own, on several devices: by slices, or in whole batches."""

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import check
from colonnade.run.batch.split import Arguments, flatten, is_tensor
from colonnade.run.batch.widths import Widths
from colonnade.run.data.feed import on_host
from colonnade.run.keras_steps.forward import Asked, Forward, predicted
from colonnade.run.keras_steps.group_step import GroupStep, cannot_be_cut
from colonnade.run.keras_steps.split_inputs import SplitInputs
from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.model.training_step import deferred, has_own
from colonnade.run.model.whole_batch import joined, nothing, unjoined
from colonnade.run.parallel.tolerance import Values
from colonnade.run.trace.concrete import hosted
from colonnade.run.trace.replica_context import remembered

NAMES = ("x",)


class PredictStep:
    """What Keras calls for batches that it predicts; on one device, whole if they cannot be cut.

    Args:
        model: the model.
        devices: where the slices go.
        split: which inputs are cut.
        asked: by whom, for messages.
    """

    def __init__(self, model: keras.Model, devices: Sequence[str], split: SplitInputs, asked: Asked) -> None:
        self._model, self._split, self._where = model, split, asked.where
        self._several = len(devices) > 1
        self._called = DeferredMetrics([])
        self._forward = Forward(self._predict, devices, asked)
        self._whole = None if self._several or split.named is not None else PredictWhole(model, devices)
        self._graphs: dict[Hashable, Any] = {}
        self._widths = Widths()

    def __call__(self, data: Sequence[Any]) -> Any:
        parts = [self._of_batch(_asked_for(self._model, batch)) for batch in data]
        return one_after_the_other(parts) if self._model.steps_per_execution > 1 else parts[0]

    def _of_batch(self, data: Any) -> Any:
        if self._whole is not None and (self._whole.used or cannot_be_cut(data)):
            return self._whole.once(data)
        batch = self._widths.opened(Arguments((self._split.marked_in(data),), {}, NAMES))
        if not self._forward.begin():
            self._graphs = {}
        if batch.key() not in self._graphs:
            self._graphs[batch.key()] = self._graph(batch)
        return self._graphs[batch.key()](*batch.components())

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _predict(self, data: Any) -> Any:
        rows = Arguments((self._split.marked_in(data),), {}, NAMES).size(self._where) or 0
        self._called = deferred(self._model, rows)
        with remembered(), self._called as called:
            prediction = self._model.predict_step(data)
            check(self._where, nothing(prediction, "prediction"))
            if self._several:
                check(self._where, unjoined(prediction, rows))
        return prediction, called.values

    def _graph(self, batch: Arguments) -> Any:
        counts = self._forward.counts(batch)
        results, called = self._forward.on_slices(batch, counts), self._called
        self._forward.examine(batch, partial(_compared, self._where))

        def predict(*components: Any) -> Any:
            predictions, values = zip(*results(batch.with_components(components)), strict=True)
            called.make(values, [tf.constant(count) for count in counts])
            return joined(predictions, self._where)

        return hosted(predict, *batch.specs())


class PredictWhole(GroupStep):
    """The same with a whole batch on every device, one after the other in what comes of it."""

    def __init__(self, model: keras.Model, devices: Sequence[str]) -> None:
        super().__init__(model, model.predict_step, devices)

    def __call__(self, data: Sequence[Any]) -> Any:
        batches, each = [_asked_for(self._model, batch) for batch in data], len(self.devices)
        groups = [batches[i : i + each] for i in range(0, len(batches), each)]
        parts = [self.of_group(group) for group in groups]
        return one_after_the_other(parts) if self.at_once > 1 else parts[0]

    def _told(self, logs: Sequence[Any]) -> list[Any]:
        whole = one_after_the_other(logs) if len(self.devices) > 1 else logs[0]
        return [leaf for _, leaf in flatten(whole) if is_tensor(leaf)]


def one_after_the_other(predictions: Sequence[Any]) -> Any:
    """Of batches, where one of them may have a single number; always a row for each."""
    return joined([tf.nest.map_structure(_in_rows, each) for each in predictions])


def _in_rows(output: Any) -> Any:
    return output[None] if isinstance(output, tf.Tensor) and output.shape.rank == 0 else output


def _asked_for(model: keras.Model, data: Any) -> Any:
    """Of a batch the inputs, of which Keras predicts; a step of the model's own gets all of it."""
    data = on_host(without_optionals(data))
    return data if has_own(model, "predict_step") else (keras.utils.unpack_x_y_sample_weight(data)[0],)


def _compared(where: str, results: Sequence[Any], counts: Sequence[int]) -> Values:
    return predicted([prediction for prediction, _ in results], where)
