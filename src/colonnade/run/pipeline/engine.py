"""Trains a pipeline: forward and backward of every micro-batch by the schedule, then one update.

Each row of devices is a pipeline; rows share every batch as replicas do. A variable lives, with what the
optimizer keeps for it, on the device of the first stage that uses it, once in every row. The places of a row
are the devices of its stages, and after them those on which layers that are split by width have parts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.hardware.devices import are_cards
from colonnade.reason.schedule import forward
from colonnade.run.batch.shares import EvenShares
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.protocols import Settings
from colonnade.run.engine.traces import specs, with_factor
from colonnade.run.memory.estimate import Memory, homes_of, of_pipeline
from colonnade.run.move.reduce import Order, add, order_for, reduce, spread
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.pipeline.tasks import Passage
from colonnade.run.step.evaluation import Evaluation, Score
from colonnade.run.step.gradient_sums import Recipe, cut, joined
from colonnade.run.step.objective import Objective, Share, stacked, vital
from colonnade.run.step.update import Update
from colonnade.run.sync.lockstep import Lockstep
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.stage_cut import StageCut, untied
from colonnade.run.trace.sync_cut import differentiated_python
from colonnade.run.trace.traced import Traced, Voice
from colonnade.run.variables.parts import home_of
from colonnade.run.variables.stage_homes import StageHomes


class Conveyor(Lockstep):
    """Builds the graph of a synchronous step in which a pipeline takes the place of each replica."""

    _examined = False  # to look at the gradient of every micro-batch would cost some percent of a step

    def __init__(
        self,
        pipeline: Pipeline,
        loss: Callable[..., Any],
        optimizer: Any,
        *,
        penalty: Callable[[], Any] | None,
        on_nan: str | None,
    ) -> None:
        # A trace cannot be cut inside a tf.function, so its Python function is traced.
        plain = getattr(loss, "python_function", loss)
        ends = tuple(row[-1] for row in pipeline.rows)
        super().__init__(
            Settings(plain, optimizer, ends, "partitioned", penalty, on_nan), EvenShares(len(ends))
        )
        self._pipeline, self._rows = pipeline, pipeline.rows
        pipeline.optimizer = optimizer
        self._legs: dict[Objective, StageCut] = {}
        self._places: list[tuple[str, ...]] = [tuple(row) for row in pipeline.rows]
        self._place_of: dict[Any, int] = {}  # by the ref of a variable
        self._homes: dict[Any, int] = {}  # the places of parameters and slots, by their refs
        self._functions: dict[tuple[Update, int], Any] = {}

    def _trace(self, batch: Arguments) -> None:
        traces = self._traces(batch, self._slices(batch))
        check("the loss function", refusals(traces, self._pipeline))
        check("the loss function", split_in_rows(traces, self._pipeline))
        check("the loss function", assigned_again(traces[0], self._pipeline))
        self._recipes(batch, self._slices(batch))
        for traced in traces:
            self._cut(traced)

    def _cut(self, traced: Objective) -> StageCut:
        """The legs of a trace. An optimizer that makes a scale for the loss has it traced once more."""
        if traced not in self._legs:
            legs = StageCut(traced, self._pipeline.num_stages, on_cards=are_cards(self._pipeline.devices))
            check("the loss function", untied(legs, self._pipeline.tied))
            self._legs[traced] = legs
        return self._legs[traced]

    def _slices(self, batch: Arguments) -> Sequence[int]:
        """Those of the micro-batches."""
        return [count for row in self._pipeline.counts(batch.size("the batch") or 0) for count in row]

    def _objective(self, part: Arguments, replica: int, num_replicas: int) -> Objective:
        """One trace for micro-batches of one shape; one each where they draw seeded numbers."""
        common = self._descent.cached(part, None)
        if num_replicas == 1 or not common.repeats:
            return common
        return self._descent.cached(part, Voice(replica, self.devices[0], True))

    def _house(self, slots: Sequence[tf.Variable], update: Update) -> None:
        for legs in self._legs.values():
            self._place_of.update({ref: min(stages) for ref, stages in legs.users.items()})
        for ref in self._place_of:
            home = home_of(ref.deref())
            if home is not None:  # and so there is one row
                if home not in self._places[0]:
                    self._places[0] = (*self._places[0], home)
                self._place_of[ref] = self._places[0].index(home)
        given = [self._place_of[parameter.ref()] for parameter in self.parameters]
        self._homes = {s.ref(): 0 for s in slots} | update.owners(given)
        self.residence = StageHomes(self._places, self._place_of | self._homes, self.parameters, slots)

    @property
    def every_device(self) -> tuple[str, ...]:
        return (*self._pipeline.devices, *homes_of(self._legs))

    def memory(self, batch: Arguments) -> Memory:
        self._trace(batch)
        pipeline = self._pipeline
        split = pipeline.counts(batch.size("the batch") or 0)
        flat = [count for row in split for count in row]
        largest = self._objective(specs(batch, flat)[0], 0, len(flat))
        return of_pipeline(
            largest,
            self._legs[largest],
            self.optimizer,
            with_factor(with_zeros(batch), flat)[0],
            self._rows,
            len(split[0]),
            pipeline.schedule,
        )

    def _bind(self) -> None:
        assert isinstance(self.residence, StageHomes)
        for objective in self._descent.objectives:
            for row in range(len(self._rows)):
                for stage in range(self._pipeline.num_stages):
                    self.residence.at_stage(row, stage, objective.captures)

    def _computed(
        self, batch: Arguments, counts: Sequence[int], order: Order
    ) -> tuple[list[Share], list[Any]]:
        assert isinstance(self.residence, StageHomes)
        split = self._pipeline.counts(sum(counts))
        parts = iter(with_factor(batch, [count for row in split for count in row]))
        shares, calls, stamps = [], [], []
        how = self._recipes(batch, self._slices(batch))
        for number, (devices, row) in enumerate(zip(self._rows, split, strict=False)):
            mine = [next(parts) for _ in row]
            first = sum(len(other) for other in split[:number])
            total = sum(len(other) for other in split)
            traces = [self._objective(part, first + i, total) for i, part in enumerate(mine)]
            passage = Passage(devices, number)
            for traced, part in zip(traces, mine, strict=True):
                handles = [
                    self.residence.at_stage(number, stage, traced.captures) for stage in range(len(devices))
                ]
                passage.add(traced, self._cut(traced), part.components(), handles)
            passage.run(self._pipeline.schedule(len(devices), len(row)))
            shares.append(self._sum(passage, traces, self._places[number], how))
            calls += passage.last
            stamps += passage.stamps
        calls.append(self._pipeline.note(stamps))
        return shares, calls

    def _sum(
        self, passage: Passage, traces: Sequence[Objective], places: Sequence[str], how: Sequence[Recipe]
    ) -> Share:
        """What the micro-batches of a row add together; gradients stay where their parameters live."""
        shares = [traced.pack(passage.leaves(i)) for i, traced in enumerate(traces)]
        home = passage.devices[-1]
        gradients, sizes, vitals = [], [], []
        inputs = zip(
            *(zip(shares[i].gradients, shares[i].sizes, strict=True) for i in passage.order), strict=True
        )
        for parameter, column, recipe in zip(self.parameters, inputs, how, strict=True):
            with tf.device(places[self._place_of[parameter.ref()]]):
                total, parts = _accumulated(column, recipe)
                gradients.append(total)
                sizes.append(parts)
                vitals.append(vital(total))
        with tf.device(home):
            return Share(
                loss=tf.add_n([share.loss for share in shares]),
                weight=None if shares[0].weight is None else tf.add_n([share.weight for share in shares]),
                metrics={k: tf.add_n([share.metrics[k] for share in shares]) for k in shares[0].metrics},
                outputs=[share.outputs for share in shares],
                gradients=gradients,
                health=stacked(vitals),
                sizes=sizes,
            )

    def _reduced(self, gradients: Sequence[Sequence[Any]], order: Order) -> list[Any]:
        found: list[Any] = [None] * len(self.parameters)
        for mine, devices in self._by_place(len(gradients)):
            of_stage = [[row[i] for i in mine] for row in gradients]
            for i, total in zip(mine, reduce(of_stage, devices, order_for(devices)), strict=True):
                found[i] = total
        return found

    def _spread(self, gradients: list[Any], num_active: int, order: Order) -> list[list[Any]]:
        rows: list[list[Any]] = [[None] * len(gradients) for _ in self._rows]
        for mine, devices in self._by_place(len(rows)):
            copies = spread([gradients[i] for i in mine], devices, order_for(devices))
            for row, copy in zip(rows, copies, strict=True):
                for i, gradient in zip(mine, copy, strict=True):
                    row[i] = gradient
        return rows

    def _by_place(self, num_rows: int) -> Iterator[tuple[list[int], list[str]]]:
        """The parameters of each place, by their positions, and the place's devices in some rows."""
        places = [self._place_of[parameter.ref()] for parameter in self.parameters]
        for place in range(len(self._places[0])):
            mine = [i for i, at in enumerate(places) if at == place]
            yield mine, [row[place] for row in self._places[:num_rows]]

    def _function(self, update: Update, home: int) -> Any:
        if (update, home) not in self._functions:
            self._functions[update, home] = update.placed(self._homes, self._places[home])
        return self._functions[update, home]

    def _culprit(self, replica: int, bad: Sequence[str]) -> str:
        places = [self._place_of[p.ref()] for p in self.parameters if p.name in bad[:1]]
        return self._places[replica][places[0]] if places else self.devices[replica]

    def traffic(self) -> float:
        """Gradients between the rows, to the first and back; what crosses between stages is not counted."""
        held = sum(p.shape.num_elements() * p.dtype.size for p in self.parameters)
        return 2.0 * (len(self._rows) - 1) * held

    def told(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        counts = self._pipeline.counts(batch.size("the batch") or 0)
        flat = [count for row in counts for count in row]
        share = self._objective(specs(batch, flat)[0], 0, len(flat)).structure
        return len(counts), share.loss.dtype, {name: value.dtype for name, value in share.metrics.items()}


class PipelineEvaluation(Evaluation):
    """Runs a loss function over data in a pipeline; variables are read where they are."""

    def __init__(self, pipeline: Pipeline, loss: Callable[..., Any]) -> None:
        super().__init__(getattr(loss, "python_function", loss), pipeline.devices)
        self._pipeline = pipeline

    def _trace(self, part: Arguments, replica: int, num_replicas: int) -> Score:
        """One trace for micro-batches of one shape; one each where they draw seeded numbers."""
        common = self._cached(part, None)
        if num_replicas == 1 or not common.repeats:
            return common
        return self._cached(part, Voice(replica, self._devices[0], True))

    def _compile(self, arguments: Arguments) -> Any:
        pipeline, stages = self._pipeline, range(self._pipeline.num_stages)
        split = pipeline.counts(arguments.size("evaluate()") or 0)
        flat = [count for row in split for count in row]
        traces = [self._trace(arguments.resized(count), i, len(flat)) for i, count in enumerate(flat)]
        check("the loss function", refusals(traces, pipeline))
        legs = {traced: StageCut(traced, pipeline.num_stages) for traced in dict.fromkeys(traces)}
        for row in range(len(split)):
            for stage in stages:
                for traced in legs:
                    self._residence.bindings(row * len(stages) + stage, traced.captures)

        def sums(*components: Any) -> Any:
            parts = zip(arguments.with_components(components).parts(flat), traces, strict=True)
            found = []
            for number, row in enumerate(split):
                passage = Passage(pipeline.rows[number], number)
                mine = [next(parts) for _ in row]
                for part, traced in mine:
                    replicas = [number * len(stages) + stage for stage in stages]
                    handles = [self._residence.bindings(i, traced.captures) for i in replicas]
                    passage.add(traced, legs[traced], part.components(), handles)
                passage.run(forward(len(stages), len(row)))
                found += [traced.pack(passage.leaves(i)) for i, (_, traced) in enumerate(mine)]
            return tf.nest.map_structure(lambda *values: tf.add_n(values), *found)

        specs = [tf.TensorSpec(c.shape, c.dtype) for c in arguments.components()]
        return concrete(sums, *specs)


def refusals(traces: Sequence[Traced], pipeline: Pipeline) -> Iterator[Problem]:
    """What is in the way of a pipeline that runs these traces."""
    called = [one for traced in traces for one in traced.stage_marks.pipelines]
    if not called or any(one is not pipeline for one in called):
        rule = "does not call the pipeline of the trainer" if not called else "calls another pipeline"
        yield Problem("loss", "a function", rule, "Call the one that is passed as devices=")
        return
    if len(traces) > 1:
        yield from differentiated_python(traces[0])
    for traced in traces:
        marks = traced.stage_marks.marks(traced.concrete.graph)
        if pipeline.num_stages > 1 and not any(m.target < pipeline.num_stages for m in marks.values()):
            rule = "calls the pipeline inside a loop, a branch or a tf.function, where a trace cannot be cut"
            yield Problem("loss", "a function", rule, "Call it from the loss function itself")
            return
        for name in traced.marks[:1]:
            rule = "has synchronized=True, and the micro-batches of a pipeline come one after the other"
            yield Problem("layer", name.rpartition("/")[0] or name, rule, "Leave synchronized=True out")
            return


def split_in_rows(traces: Sequence[Traced], pipeline: Pipeline) -> Iterator[Problem]:
    """Layers that are split by width in several pipelines: each would need parts of its own."""
    if len(pipeline.rows) == 1:
        return
    for variable in {v.ref(): v for traced in traces for v in traced.variables}.values():
        if home_of(variable) is not None:
            rule = "is a part of a layer that is split by width, and the rows would share its device"
            yield Problem("variable", variable.name, rule, "Use one row, or an unsplit layer")


def assigned_again(traced: Objective, pipeline: Pipeline) -> Iterator[Problem]:
    """Trained variables that the function assigns to: one micro-batch would begin where another ended."""
    for variable in traced.assigned if pipeline.micro_batches > 1 else ():
        rule = "is trained, and the function assigns to it: each micro-batch would do so again"
        fix = "Choose micro_batches=1, or a kernel_constraint= for what holds after updates"
        yield Problem("variable", variable.name, rule, fix)


def _accumulated(column: Sequence[tuple[Any, Any]], recipe: Recipe) -> tuple[Any, Any]:
    """A gradient of all micro-batches, added up as they come, so that one copy is kept and not all.

    Takes the gradients with the sizes of their pieces, and gives both for the sum.
    """
    cuts = [cut(gradient, sizes, recipe) for gradient, sizes in column if gradient is not None]
    return joined([add(parts) for parts in zip(*cuts, strict=True)] or [None], recipe, len(cuts))
