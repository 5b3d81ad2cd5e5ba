"""A `train_step` or `test_step` of a Keras model's own, on several devices.

Every replica runs the user's step on its slice, traced once, with variables of its own: gradients are added
where the step applies them, and metrics are those of the whole batch (see `model.replica_scope`).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments, flatten, is_tensor, sizes, with_tensors
from colonnade.run.batch.widths import Widths, kind_of
from colonnade.run.data.coming_batches import ComingBatches, of_execution
from colonnade.run.data.feed import on_host
from colonnade.run.engine.step_ahead import StepAhead, StepsAhead
from colonnade.run.keras_steps.keras_losses import of_slices
from colonnade.run.keras_steps.split_inputs import EVERY_INPUT, SplitInputs, uncut
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.model.own_loss import OwnLoss
from colonnade.run.model.replica_scope import AppliedInside, ReplicaScope, Size
from colonnade.run.model.training_step import all_metrics, plain_step
from colonnade.run.model.user_line import Failures
from colonnade.run.model.whole_batch import AddedLosses, told_kinds
from colonnade.run.move.reduce import order_for, star
from colonnade.run.move.slices_ahead import SlicesAhead
from colonnade.run.prove import slice_failure
from colonnade.run.prove.look import FIRST, POSITIONS
from colonnade.run.prove.second_looks import ProvedSizes
from colonnade.run.prove.step_in_slices import StepInSlices
from colonnade.run.prove.verdict import Prover
from colonnade.run.step.gradient_rows import lookups
from colonnade.run.step.untrainable import overwritten
from colonnade.run.step.whole_variables import looking
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.concrete import hosted
from colonnade.run.trace.keras_owner import keras_variable
from colonnade.run.trace.replica_context import remembered
from colonnade.run.trace.traced import Traced, Voice
from colonnade.run.trace_cut.sync_cut import call_with_sums, problems
from colonnade.run.variables.aggregation import mean_of
from colonnade.run.variables.replica_copies import ReplicaCopies
from colonnade.run.variables.saved_state import Item, SavedState, named
from colonnade.run.variables.slice_values import local_outputs

# How many batches are looked at, where they show nothing.
LOOKS = 3
NAMES = ("data", POSITIONS, "total")
# Of what a replica returns, where the losses are that layers have added.
ADDED = 4


class Way(NamedTuple):
    """How a step is computed in slices.

    Args:
        gathers: whether `compute_loss` is that of the whole batch.
        kinds: of losses that layers add (see `AddedLosses`).
        at_tape: whether gradients are added where a tape gives them.
        weighs: whether what a tape gives is made what it gives of the whole batch (see `ReplicaScope`).
    """

    gathers: bool
    kinds: dict[Any, str]
    at_tape: bool
    weighs: bool


class OwnStep:
    """What Keras calls for every batch in place of the user's step.

    Args:
        model: the model.
        step: its `train_step` or `test_step`.
        devices: where the replicas run.
        prover: of the first batch.
        split: which inputs are cut.
    """

    def __init__(
        self,
        model: keras.Model,
        step: Callable[[Any], Any],
        devices: Sequence[str],
        prover: Prover,
        split: SplitInputs = EVERY_INPUT,
    ) -> None:
        self._model, self._prover, self._split = model, prover, split
        self._step = plain_step(step, model)
        self.devices, self.copies = tuple(devices), ReplicaCopies(devices, of_read=True)
        # By the kind of a batch: whether sizes grow with the number of examples, by their places (see
        # `ReplicaScope`); and those for which traces had to be made once more.
        self._growing: dict[Hashable, dict[int, bool]] = defaultdict(dict)
        self._mistaken: dict[Hashable, frozenset[int]] = defaultdict(frozenset)
        self._batch_kind: Hashable = None  # of the batch at hand
        self._traces = TraceCache(self._traced, devices, lambda: self._mistaken[self._batch_kind])
        self._graphs: dict[Hashable, Any] = {}
        # The same with slices that were sent ahead, and what these tell.
        self._ahead, self._structures = StepsAhead(), dict[Hashable, Any]()
        self._widths, self._failures = Widths(), Failures()
        self._sizes, self._begun, self._untold = ProvedSizes(), False, 0  # batches that showed nothing
        self._optimizers: list[tuple[Any, list[Any]]] = []  # of a trace, and what they train
        self.names: list[str] = []  # of the variables whose gradients a trace gives
        self._added = AddedLosses()
        # Whether the model computes its loss for the whole batch, and whether the step asks it to.
        self._gathers, self._asks_for_loss = any(of_slices(model.loss)), False
        # Where gradients are added, and whose the trace at hand applies (see `ReplicaScope`).
        self._at_tape, self._weighs, self._applied = False, True, set[str]()
        self._weighed = False  # whether the trace at hand gives what is another number of the whole batch

    def __call__(self, iterator: Any) -> Any:
        logs: Any = {}
        for data in of_execution(iterator, self._model.steps_per_execution):
            logs = self.once(data, iterator)
        return logs

    def once(self, data: Any, coming: Any = None) -> Any:
        """One step on one batch, which comes from there; what Keras tells of it."""
        if isinstance(coming, ComingBatches) and hardware.are_cards(self.devices):
            batch = self._checked(data)
            step = self._ahead.of(batch.key(), partial(self._graph_ahead, batch))
            assert step is not None
            tensors = self._ahead.call(step, batch, coming, self._opened)
            return with_tensors(self._structures[batch.key()], tensors)
        (structure, function), batch = self.prepare(data)
        with self._only_in_slices(batch):
            return with_tensors(structure, function(*batch.components()))

    def _only_in_slices(self, batch: Arguments) -> AbstractContextManager[None]:
        """Around what computes a batch in slices."""
        if len(self.counts(batch)) == 1:
            return nullcontext()
        return slice_failure.told("fit()", self._model.name, lambda: StepInSlices(self, batch).look)

    def _opened(self, data: Any) -> Arguments:
        """A batch with the dims open that vary."""
        return self._widths.opened(self._arguments(on_host(without_optionals(data))))

    def _checked(self, data: Any) -> Arguments:
        batch = self._opened(data)
        counts = self.counts(batch)
        if self._prover.wanted and self._sizes.shows_more(self._batch_kind, counts):
            with self._only_in_slices(batch):
                self._examine(batch, f"{FIRST} of {sum(counts)} examples" if self._begun else FIRST)
            self._begun = True
            self._untold += not self._prover.told
            if self._prover.told or self._untold >= LOOKS:
                self._sizes.note(self._batch_kind, counts)
        return batch

    def prepare(self, data: Any) -> tuple[tuple[Any, Any], Arguments]:
        """The graph of a step on such a batch, with all its variables, and the batch as it takes it."""
        batch = self._checked(data)
        key = batch.key()
        if key not in self._graphs:
            self._graphs[key] = self._graph(batch)
        return self._graphs[key], batch

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `step_state`): all that a trace knows of, and streams of numbers."""
        captured = {
            c.variable.ref(): c.variable for t in self._traces for c in t.captures if c.variable is not None
        }
        common = {f"step/{name}": Item(v, v) for name, v in named(captured.values()).items()}
        for traced in self._traces:  # replicas for which no batch was large enough yet
            for i in range(len(self.devices)):
                self.copies.bindings(i, traced)
        streams = self.copies.streams()
        return SavedState(common, streams, frozenset(streams))

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        self.copies.go_on(own)

    def next_join(self, step: int) -> int:
        return step

    def _arguments(self, data: Any) -> Arguments:
        marked = self._split.marked_in(data)
        plain = Arguments((marked,), {}, NAMES)
        check("fit()", uncut(plain))
        self._batch_kind, total = kind_of(plain), plain.size("fit()") or 0
        return Arguments((marked, tf.range(total), total), {}, NAMES)

    def counts(self, batch: Arguments) -> tuple[int, ...]:
        return sizes(batch.size("fit()") or 0, len(self.devices))

    def _traced(self, part: Arguments, voice: Voice | None) -> Traced:
        try:
            return Traced(self._replica, part, voice)
        except AppliedInside:
            self._at_tape = True
            return Traced(self._replica, part, voice)

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _replica(self, data: Any, positions: Any, total: int) -> Any:
        split = [leaf.value for leaf in Arguments((self._split.marked_in(data),), {}, NAMES).split]
        looked_up = partial(lookups, given=[*split, positions])
        known = self._growing[self._batch_kind]
        made = partial(ReplicaScope, weighs=self._weighs, at_tape=self._at_tape)
        scope = made(positions.shape[0], total, positions, known, looked_up)
        own = OwnLoss(self._model, scope.whole, gathers=self._gathers)
        added = self._added.noted(positions.shape[0], total)
        with (
            remembered(),
            self._failures.noted(),
            scope.entered(all_metrics(self._model)),
            added,
            own.entered(),
        ):
            logs = tf.nest.map_structure(scope.summed, self._step(data))
        self.names, self._asks_for_loss = [name for name, _ in scope.gradients], own.called
        self._applied, self._optimizers = scope.applied, scope.optimizers
        self._weighed = scope.weighs
        gradients, values = [gradient for _, gradient in scope.gradients], list(self._added.values)
        # A call without outputs could not be waited for.
        return logs, gradients, tf.constant(0), scope.sizes, values

    @property
    def loss_scales(self) -> list[tf.Variable]:
        """By which its optimizers multiply losses, where these are variables."""
        scaling = [o for o, _ in self._optimizers if isinstance(o, keras.optimizers.LossScaleOptimizer)]
        return [optimizer.dynamic_scale.value for optimizer in dict.fromkeys(scaling)]

    def _looking(self, num_slices: int) -> Iterator[Problem]:
        """Optimizers that would look at parts of variables as if they were whole, or take sums for values."""
        for optimizer, variables in self._optimizers:
            trained = [getattr(v, "value", v) for v in variables or self._model.trainable_variables]
            yield from looking(optimizer, trained)
            yield from overwritten(trained) if num_slices > 1 else ()

    def traces(self, batch: Arguments) -> list[Traced]:
        """One for each slice; in eager code, because they may make variables."""
        counts = self.counts(batch)
        with self._failures.told("fit()", self._model.name, counts, partial(self.whole, batch)):
            traces = self._of_slices(batch, counts)
            if self._learns(batch, counts, traces):
                traces = self._of_slices(batch, counts)
        check("fit()", [*problems(traces), *self._looking(len(counts))])
        of_batch = [v.value for metric in all_metrics(self._model) for v in metric.variables]
        for i, traced in enumerate(traces):
            self.copies.bindings(i, traced)
            self.copies.note(traced, of_batch)
        check("fit()", self.copies.problems())
        if self._at_tape and len(counts) > 1:
            check("fit()", self._moved())
        return traces

    def _moved(self) -> Iterator[Problem]:
        """Weights to which gradients are applied that no tape in the step itself gave."""
        known = [keras_variable(variable) for variable in self.copies.local.values()]
        for path in [v.path for v in known if v is not None and v.path in self._applied]:
            rule = "is given gradients inside a loop, a branch or a tf.function, where a trace cannot be "
            rule += "cut, by what is of a slice"
            fix = "Call tape.gradient in the step itself, and let a branch depend on what is of no batch, "
            fix += "such as a counter; or multiply gradients by 0 or 1"
            yield Problem("variable", path, rule, fix)
            return

    def _of_slices(self, batch: Arguments, counts: Sequence[int]) -> list[Traced]:
        parts = [batch.resized(count) for count in counts]
        return [self._traces.of_replica(part, i, len(counts)) for i, part in enumerate(parts)]

    def _learns(self, batch: Arguments, counts: Sequence[int], traces: Sequence[Traced]) -> bool:
        """Whether the whole batch shows sizes to be fixed that were taken for those of the examples."""
        if len(counts) == 1:
            return False
        met: dict[int, list[Size]] = defaultdict(list)
        for traced in traces:
            for place, size in enumerate(traced.structure[3]):
                met[place].append(size)
        known = self._growing[self._batch_kind]
        new = {place: sizes for place, sizes in met.items() if place not in known}
        fixed = {i for i, sizes in new.items() if any(s.value is not None and not s.doubtful for s in sizes)}
        doubtful = {i: sizes for i, sizes in new.items() if all(s.doubtful for s in sizes)}
        if self._prover.wanted or any(not s.usual for sizes in doubtful.values() for s in sizes):
            whole = dict(enumerate(self.whole(batch).structure[3])) if doubtful else {}
            same = {i for i, (s, *_) in doubtful.items() if i in whole and whole[i].value == s.value}
            known |= {i: i not in same for i in doubtful}
            fixed |= same
        known |= dict.fromkeys(fixed, False)
        mistaken = {i for i in fixed if any(size.doubtful for size in met[i])}
        self._mistaken[self._batch_kind] |= mistaken
        return bool(mistaken)

    def whole(self, batch: Arguments) -> Traced:
        """The step as one device makes it."""
        return self._traces.get(batch.resized(sum(self.counts(batch))))

    def _examine(self, batch: Arguments, where: str) -> None:
        """Prove a batch, computed in the first way in which several devices do what one does."""

        def found() -> StepInSlices:
            return StepInSlices(self, batch).anew(batch, where)

        examined = partial(
            self._prover.examine_step, again=partial(self._apart, batch), name=type(self._model).__name__
        )
        try:
            with self._prover.raising():
                examined(found())
            return
        except InvalidArgument:
            before, *others = self._ways(found())
        for way in others:
            self._computes_as(way)
            with suppress(InvalidArgument), self._prover.raising():
                examined(found())
                return
        self._computes_as(before)
        examined(found())

    def _ways(self, found: StepInSlices) -> list[Way]:
        """How a step is computed now, and how else it may be, as a batch and its slices tell."""
        now, kinds = self._way, dict(self._added.kinds)
        if self._added.calls:
            whole, parts = found.given(ADDED)
            told = told_kinds(_numbers(whole), [_numbers(part) for part in parts], found.counts, 1e-6)
            kinds |= {call: kind for call, kind in zip(self._added.calls, told, strict=True) if kind}
        of_batch = now._replace(gathers=self._gathers or self._asks_for_loss, kinds=kinds)
        ways = [now, of_batch, now._replace(at_tape=True), of_batch._replace(at_tape=True)]
        if self._weighed:
            ways += [way._replace(weighs=False) for way in (now, now._replace(at_tape=True))]
        return [way for i, way in enumerate(ways) if way not in ways[:i]]

    @property
    def _way(self) -> Way:
        return Way(self._gathers, dict(self._added.kinds), self._at_tape, self._weighs)

    def _computes_as(self, way: Way) -> None:
        """Trace anew, in such a way."""
        self._gathers, self._added.kinds, self._at_tape, self._weighs = way
        for known in (self._growing, self._mistaken, self._graphs):
            known.clear()
        self._traces.forget()
        self.copies.forget_local()

    def _apart(self, batch: Arguments) -> StepInSlices:
        """The step as it is now, traced for nobody else's use."""
        other = OwnStep(self._model, self._step, self.devices, self._prover, self._split)
        other._computes_as(self._way)
        return StepInSlices(other, batch)

    def _graph(self, batch: Arguments) -> tuple[Any, Any]:
        """The logs of a step, and the graph that makes one."""
        structure, step = self._logs(batch)
        graph = hosted(lambda *components: step(batch.with_components(components)), *batch.specs())
        return structure, graph

    def _graph_ahead(self, batch: Arguments) -> StepAhead:
        self._structures[batch.key()], step = self._logs(batch)
        places = SlicesAhead(batch, self.counts(batch), self.devices)
        inputs = self.traces(batch)[0].concrete.inputs[: len(batch.components())]
        return StepAhead(step, batch, places, inputs)

    def _logs(self, batch: Arguments) -> tuple[Any, Callable[[Arguments], Any]]:
        """The logs of a step on such a batch, and what builds the graph of one."""
        traces, counts = self.traces(batch), self.counts(batch)
        shares = [count / sum(counts) for count in counts]
        structure = traces[0].structure[0]
        of_slices = any(local_outputs(traces[0])[: len(_tensors(structure))])

        def step(given: Arguments) -> Any:
            self.copies.begin()
            before = self.copies.before()
            results = self.called(traces, given)
            logs = [_tensors(t.pack(leaves)[0]) for t, leaves in zip(traces, results, strict=True)]
            done = [leaf for leaves in results for leaf in leaves if isinstance(leaf, tf.Tensor)]
            with tf.control_dependencies(done):
                ops = self.copies.settle(shares, before)
            with tf.control_dependencies(ops):
                if not of_slices:
                    return [tf.identity(leaf) for leaf in logs[0]]
                return [_mean(each, shares) for each in zip(*logs, strict=True)]

        return structure, step

    def called(self, traces: Sequence[Traced], batch: Arguments) -> list[list[Any]]:
        """The leaves that each replica gives for its slice."""
        counts = self.counts(batch)
        parts = [part.components() for part in batch.parts(counts)]
        bound = [self.copies.bindings(i, traced) for i, traced in enumerate(traces)]
        working = self.devices[: len(counts)]
        order = order_for(working) if len(counts) > 1 else star(1)
        return call_with_sums(traces, working, parts, bound, order)


def _numbers(tensors: Sequence[Any]) -> list[float]:
    return [float(tensor) for tensor in tensors]


def _tensors(nest: Any) -> list[Any]:
    return [leaf for _, leaf in flatten(nest) if is_tensor(leaf)]


def _mean(values: Sequence[Any], shares: Sequence[float]) -> Any:
    """Of numbers that each slice has of its own, by their sizes; of what has no mean, that of the first."""
    if not values[0].dtype.is_floating:
        return tf.identity(values[0])
    return mean_of(values, shares)
