"""A step in which every device takes a whole batch of the dataset, and one update is made over all of them.

For batches that cannot be cut, such as one graph each: their inputs have different numbers of rows. On one
device it is the step of Keras itself.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.batch.split import Arguments, flatten, is_tensor, pack, with_tensors
from colonnade.run.data.coming_batches import of_execution
from colonnade.run.data.feed import on_host
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.model.group_scope import GroupScope
from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.model.training_step import all_metrics
from colonnade.run.move.reduce import order_for, star
from colonnade.run.prove.verdict import Prover
from colonnade.run.trace.concrete import hosted
from colonnade.run.trace.replica_context import remembered
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import call_with_sums, problems
from colonnade.run.variables.saved_state import SavedState

NAMES = ("data", "place", "num_batches")


class GroupStep(OwnStep):
    """What Keras calls in place of its step, for as many batches as there are devices.

    Args:
        model: the model.
        step: its `train_step` or `test_step`, be it Keras's.
        devices: where the batches go.
    """

    def __init__(self, model: keras.Model, step: Callable[[Any], Any], devices: Sequence[str]) -> None:
        super().__init__(model, step, devices, Prover(False, "fit()", print))
        self._kind: Any = None  # of all batches so far: dims that vary are open
        self._deferred = DeferredMetrics([])

    @property
    def at_once(self) -> int:
        """How many batches Keras asks for in one call."""
        return int(self._model.steps_per_execution)

    @property
    def used(self) -> bool:
        """Whether a batch was seen."""
        return self._kind is not None

    def __call__(self, iterator: Any) -> Any:
        logs: Any = {}
        # The last group of an epoch may be smaller.
        batches = chain([next(iterator)], islice(iterator, self.at_once - 1))
        while group := list(islice(batches, len(self.devices))):
            logs = self.of_group(group)
        return logs

    def once(self, data: Any, coming: Any = None) -> Any:
        return self.of_group([data])

    def of_group(self, group: Sequence[Any]) -> Any:
        """One update over some batches; what Keras tells of it."""
        group = [on_host(without_optionals(data)) for data in group]
        structure, function = self._built(group)
        places = [tf.constant(i) for i in range(len(group))]
        given = zip(group, places, strict=True)
        parts = [Arguments((*each, len(group)), {}, NAMES).components() for each in given]
        return with_tensors(structure, function(*chain(*parts)))

    def prepare(self, data: Any) -> Any:
        return self._built([without_optionals(data)])

    def _built(self, group: Sequence[Any]) -> tuple[Any, Any]:
        """The graph of a step on such a group."""
        for data in group:
            self._widen(tf.nest.map_structure(_spec_of, data))
        key = (len(group), str(self._kind))
        if key not in self._graphs:
            self._graphs[key] = self._of_kind(len(group))
        return self._graphs[key]

    def _widen(self, kind: Any) -> None:
        """Let the trace serve this batch too."""
        if self._kind is None:
            self._kind = kind
            return
        both = list(zip(flatten(self._kind), flatten(kind), strict=False))
        wider = [one if one is None else one.most_specific_common_supertype([o]) for (_, one), (_, o) in both]
        if len(both) != len(list(flatten(kind))) or any(
            new is None and old is not None for new, ((_, old), _) in zip(wider, both, strict=True)
        ):
            rule, fix = f"differ in kind: {self._kind} and {kind}", "Let all have the same ranks and dtypes"
            check("fit()", [Problem("batches", "a dataset", rule, fix)])
        self._kind = pack(self._kind, iter(wider))

    def _traced(self, part: Arguments, voice: Any) -> Traced:
        return Traced(self._of_batch, part, voice)

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _of_batch(self, data: Any, place: Any, num_batches: int) -> Any:
        scope = GroupScope(place, num_batches)
        with remembered(), scope.entered(all_metrics(self._model)):
            logs = self._step(data)
        self._deferred, self._applied, self._optimizers = scope.noted, scope.applied, scope.optimizers
        # A call without outputs could not be waited for.
        return logs, scope.noted.values, tf.constant(0)

    def _of_kind(self, num_batches: int) -> tuple[Any, Any]:
        """The logs of a step on so many batches, and the graph that makes one."""
        part = Arguments((self._kind, tf.TensorSpec([], tf.int32), num_batches), {}, NAMES)
        traces = [self._traces.of_replica(part, i, num_batches) for i in range(num_batches)]
        check("fit()", [*problems(traces), *self._looking(num_batches)])
        bound = [self.copies.bindings(i, traced) for i, traced in enumerate(traces)]
        for traced in traces:
            self.copies.note(traced)
        check("fit()", self.copies.problems())
        deferred, structure = self._deferred, traces[0].structure[0]
        working, shares = self.devices[:num_batches], [1.0 / num_batches] * num_batches
        order = order_for(working) if num_batches > 1 else star(1)
        specs = [tf.TensorSpec(c.shape, c.dtype) for c in part.components()]

        def step(*components: Any) -> Any:
            self.copies.begin()
            before = self.copies.before()
            parts = [components[i * len(specs) : (i + 1) * len(specs)] for i in range(num_batches)]
            leaves = call_with_sums(traces, working, parts, bound, order)
            results = [traced.pack(each) for traced, each in zip(traces, leaves, strict=True)]
            done = [leaf for each in leaves for leaf in each if isinstance(leaf, tf.Tensor)]
            with tf.control_dependencies(done):
                ops = self.copies.settle(shares, before)
            with tf.control_dependencies(ops):
                for _, noted, _ in results:
                    deferred.make([[tf.identity(value) for value in noted]], [tf.constant(1)])
                return self._told([logs for logs, *_ in results])

        return structure, hosted(step, *specs * num_batches)

    def _told(self, logs: Sequence[Any]) -> list[Any]:
        """What metrics are after all batches; of other numbers the mean."""
        known = {f"[{name!r}]": value for name, value in self._model.get_metrics_result().items()}
        columns = zip(*(list(flatten(each)) for each in logs), strict=True)
        tensors = [(each[0][0], [leaf for _, leaf in each]) for each in columns if is_tensor(each[0][1])]
        return [known[path] if path in known else _mean(values) for path, values in tensors]


class CutOrWhole:
    """On one device: a step, and what takes its place where a batch could not be cut."""

    def __init__(self, cut: Any, whole: GroupStep) -> None:
        self._cut, self._whole, self.devices = cut, whole, whole.devices

    def __call__(self, iterator: Any) -> Any:
        logs: Any = {}
        for data in of_execution(iterator, self._whole.at_once):
            logs = self._for(data).once(data, iterator)
        return logs

    def _for(self, data: Any) -> Any:
        return self._whole if self._whole.used or cannot_be_cut(data) else self._cut

    @property
    def _used(self) -> Any:
        return self._whole if self._whole.used else self._cut

    def prepare(self, data: Any) -> Any:
        return self._for(data).prepare(data)

    def state(self) -> SavedState:
        state: SavedState = self._used.state()
        return state

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        self._used.resume(own)

    def next_join(self, step: int) -> int:
        return step


def cannot_be_cut(data: Any) -> bool:
    """Whether the inputs of a batch have different numbers of rows, or none has rows."""
    sizes = {leaf.size() for leaf in Arguments((data,), {}, ("data",)).split}
    return len(sizes - {None}) != 1


def _mean(values: Sequence[Any]) -> Any:
    if not values[0].dtype.is_floating:
        return tf.identity(values[0])
    return tf.add_n(list(values)) / tf.cast(len(values), values[0].dtype)


def _spec_of(value: Any) -> Any:
    if value is None:
        return None
    return tf.type_spec_from_value(value if is_tensor(value) else tf.convert_to_tensor(value))
