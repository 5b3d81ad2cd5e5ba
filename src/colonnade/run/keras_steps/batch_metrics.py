"""The metrics of a Keras model for a whole batch, from what its slices noted.

What a model does to metrics may depend on `training`, on the structure of a batch and on its size, so each
trace has notes of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.batch.split import flatten
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.model.metrics import DeferredMetrics, MetricCalls, update
from colonnade.run.model.training_step import all_metrics
from colonnade.run.model.whole_batch import joined, with_masks
from colonnade.run.parallel.tolerance import Values
from colonnade.run.trace.captures import captures
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.raw_call import raw_call
from colonnade.run.trace.traced import Traced


class Notes(NamedTuple):
    """The calls of metrics in one trace."""

    in_model: MetricCalls = MetricCalls()  # by layers, while the model was called
    in_loss: MetricCalls = MetricCalls()  # while its loss was computed


class BatchMetrics:
    """Updates the metrics of a model once for a batch, and tells them as Keras does."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._by_graph: WeakKeyDictionary[Any, Notes] = WeakKeyDictionary()
        self._notes: list[Notes] = []  # of the slices of the batch at hand
        self._whole: Callable[[], Traced] | None = None
        self.gathers = False  # whether every slice has noted for its loss what the whole batch gives
        self._measured = tf.function(self._measure, autograph=False)

    def note(self, in_model: DeferredMetrics, in_loss: DeferredMetrics) -> None:
        """At the end of a trace, in its graph."""
        self._by_graph[tf.compat.v1.get_default_graph()] = Notes(in_model.noted, in_loss.noted)

    def of_batch(
        self,
        traces: Sequence[Traced],
        whole: Callable[[], Traced],
        loss: Any,
        outputs: Any,
        given: Any,
        engine: Any,
    ) -> Any:
        """Loss and metrics of a batch, as Keras keeps them.

        Args:
            traces: of each slice.
            whole: gives the trace of the whole batch, if its slices do not tell all.
            loss: that of the batch.
            outputs: of each slice: predictions, masks, values for metrics of the loss, its size, what layers
                have added, values for metrics of the model, how many numbers its loss is.
            given: the batch, and how many examples it has.
            engine: what trains.
        """
        self._take(traces, whole)
        with self._telling():
            return self._of_batch(loss, outputs, given, engine)

    def _of_batch(self, loss: Any, outputs: Any, given: Any, engine: Any) -> Any:
        if tf.executing_eagerly():  # a graph of its own, where a step is none
            return self._measured(loss, outputs, *given)
        housed = engine.housed if isinstance(engine, GraphEngine) else None
        if housed is None or all(housed.current(v) is v for v in (*housed.parameters, *housed.slots)):
            return self._measure(loss, outputs, *given)
        # What reads the model's weights reads them where they are during a step.
        return _read_elsewhere(lambda: self._measure(loss, outputs, *given), housed.current)

    def _take(self, traces: Sequence[Traced], whole: Callable[[], Traced]) -> None:
        self._notes, self._whole = [self._by_graph[traced.traced_in] for traced in traces], whole

    def looked_at(
        self, traces: Sequence[Traced], whole: Callable[[], Traced], loss: Any, outputs: Any, given: Any
    ) -> Values:
        """The same of one batch alone, in eager code, from any traces; states stay as they are."""
        before = [(v, v.numpy()) for metric in all_metrics(self._model) for v in metric.variables]
        self._model.reset_metrics()
        self._take(traces, whole)
        with self._telling():
            logs = self._measure(loss, outputs, *given)
        self._model.reset_metrics()  # those that were made just now
        for variable, value in before:
            variable.assign(value)
        told = [(name + path, leaf) for name, value in logs.items() for path, leaf in flatten(value)]
        return {name: tf.convert_to_tensor(leaf).numpy() for name, leaf in told}

    def _measure(self, loss: Any, outputs: Any, x: Any, y: Any, weight: Any, rows: int | None) -> Any:
        predictions, masks, values, counts, _, called, sizes = zip(*outputs, strict=True)
        notes = self._notes
        update([each.in_model for each in notes], called, counts, lambda: self._of_whole().in_model)
        if self.gathers:
            notes, values, counts = notes[:1], values[:1], counts[:1]
        update([each.in_loss for each in notes], values, counts, lambda: self._of_whole().in_loss)
        loss /= tf.cast(sizes[0], loss.dtype)  # of a loss that is no number the mean is told
        all_metrics(self._model)[0].update_state(loss, sample_weight=rows)
        prediction = with_masks(joined(predictions), joined(masks))
        return self._model.compute_metrics(x, y, prediction, sample_weight=weight)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """While metrics are computed of what the slices returned: of what else they left nobody knows."""
        try:
            yield
        except TypeError as error:
            if "out of scope" not in str(error):
                raise
            raise InvalidArgument("fit()", [self._left()]) from None
        graph = tf.compat.v1.get_default_graph()
        if any(map(tf.is_symbolic_tensor, getattr(graph, "external_captures", ()))):
            raise InvalidArgument("fit()", [self._left()])

    def _left(self) -> Problem:
        rule = "reads what call has left in an attribute, which here is of a slice"
        fix = "Let call return it, or give it to a metric in call: self.tracker.update_state(...)"
        return Problem("compute_metrics", type(self._model).__name__, rule, fix)

    def _of_whole(self) -> Notes:
        assert self._whole is not None
        with tf.init_scope():
            return self._by_graph[self._whole().traced_in]


def _read_elsewhere(fn: Callable[[], Any], current: Callable[[tf.Variable], tf.Variable]) -> Any:
    """What a function gives that takes other variables for those that it reads."""
    made = concrete(fn)
    given = [c.tensor if c.variable is None else current(c.variable).handle for c in captures(made)]
    flat = raw_call(made, given, [output.dtype for output in made.outputs])
    return tf.nest.pack_sequence_as(made.structured_outputs, flat, expand_composites=True)
