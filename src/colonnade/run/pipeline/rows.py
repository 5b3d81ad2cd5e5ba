"""Trains a pipeline on a row of devices, or on several: all tasks of the schedule, then one update.

Each row of devices is a pipeline; rows share every batch as replicas do. A variable lives, with what the
optimizer keeps for it, on the device of the first stage that uses it, once in every row. The places of a row
are the devices of its stages, and after them those on which layers that are split by width have parts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.hardware.devices import are_cards
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import components, slice_specs, slices
from colonnade.run.engine.protocols import Links, Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import Memory, homes_of, of_pipeline
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.move.reduce import add, order_for, reduce, spread
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.pipeline.refusals import assigned_again, refusals, split_in_rows
from colonnade.run.pipeline.tasks import Passage
from colonnade.run.step.gradient_sums import Recipe, cut, joined
from colonnade.run.step.objective import Objective, Share, stacked, vital
from colonnade.run.step.update import Update
from colonnade.run.sync.lockstep import Lockstep
from colonnade.run.trace_cut.stage_cut import StageCut, untied
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.parts import home_of
from colonnade.run.variables.stage_homes import StageHomes


def pipelined(
    pipeline: Pipeline,
    loss: Callable[..., Any],
    optimizer: Any,
    *,
    penalty: Callable[[], Any] | None,
    on_nan: str | None,
) -> Lockstep:
    """Synchronous training in which a row of the pipeline takes the place of each replica."""
    # A trace cannot be cut inside a tf.function, so its Python function is traced.
    plain = getattr(loss, "python_function", loss)
    ends = tuple(row[-1] for row in pipeline.rows)
    settings = Settings(plain, optimizer, ends, "partitioned", penalty, on_nan)
    # To look at the gradient of every micro-batch would cost some percent of a step.
    traces = Traces(settings, examined=False)
    pipeline.optimizer = optimizer
    return Lockstep(settings, traces, Rows(pipeline, traces))


class Rows:
    """Pipelines side by side, each with a slice of the batch in micro-batches."""

    unbroken = False

    def __init__(self, pipeline: Pipeline, traces: Traces) -> None:
        self._pipeline, self._traces, self._rows = pipeline, traces, pipeline.rows
        self._on_cards = are_cards(pipeline.devices)
        self._legs: dict[Objective, StageCut] = {}
        self._places: list[tuple[str, ...]] = [tuple(row) for row in pipeline.rows]
        self._place_of: dict[Any, int] = {}  # by the ref of a variable
        self._homes: dict[Any, int] = {}  # the places of parameters and slots, by their refs
        self._functions: dict[tuple[Update, int], Any] = {}

    @property
    def every_device(self) -> tuple[str, ...]:
        return (*self._pipeline.devices, *homes_of(self._traces.objectives))

    def slices(self, counts: Sequence[int]) -> Sequence[int]:
        """Those of the micro-batches."""
        return [count for row in self._pipeline.counts(sum(counts)) for count in row]

    def traced(self, batch: Arguments, counts: Sequence[int]) -> list[Objective]:
        parts = slice_specs(batch, self.slices(counts))
        return [self._traces.of_micro_batch(part, i, len(parts)) for i, part in enumerate(parts)]

    def refused(self, traces: Sequence[Objective]) -> Iterable[Problem]:
        yield from (problems := list(refusals(traces, self._pipeline)))
        if problems:
            return
        yield from split_in_rows(traces, self._pipeline)
        yield from assigned_again(traces[0], self._pipeline)
        for traced in dict.fromkeys(traces):
            yield from untied(self._cut(traced), self._pipeline.tied)

    def _cut(self, traced: Objective) -> StageCut:
        """The legs of a trace. An optimizer that makes a scale for the loss has it traced once more."""
        if traced not in self._legs:
            self._legs[traced] = StageCut(traced, self._pipeline.num_stages, on_cards=self._on_cards)
        return self._legs[traced]

    def memory(self, batch: Arguments, traces: Sequence[Objective], counts: Sequence[int]) -> Memory:
        split = self._pipeline.counts(sum(counts))
        return of_pipeline(
            traces[0],  # no micro-batch is larger
            self._cut(traces[0]),
            self._traces.optimizer,
            slices(with_zeros(batch), self.slices(counts))[0],
            self._rows,
            len(split[0]),
            self._pipeline.schedule,
        )

    def house(self) -> Homes:
        parameters, slots = self._traces.parameters, self._traces.slots
        for traced in self._traces.objectives:
            self._place_of.update({ref: min(stages) for ref, stages in self._cut(traced).users.items()})
        for ref in self._place_of:
            home = home_of(ref.deref())
            if home is not None:  # and so there is one row
                if home not in self._places[0]:
                    self._places[0] = (*self._places[0], home)
                self._place_of[ref] = self._places[0].index(home)
        update = self._traces.update(self._traces.specs)
        given = [self._place_of[parameter.ref()] for parameter in parameters]
        self._homes = {s.ref(): 0 for s in slots} | update.owners(given)
        return StageHomes(self._places, self._place_of | self._homes, parameters, slots)

    def bind(self, housed: Homes) -> None:
        assert isinstance(housed, StageHomes)
        for objective in self._traces.objectives:
            for row in range(len(self._rows)):
                for stage in range(self._pipeline.num_stages):
                    housed.at_stage(row, stage, objective.captures)

    def compute(
        self, batch: Arguments, counts: Sequence[int], housed: Homes, how: Sequence[Recipe]
    ) -> tuple[list[Share], list[Any]]:
        assert isinstance(housed, StageHomes)
        split = self._pipeline.counts(sum(counts))
        parts = iter(slices(batch, self.slices(counts)))
        total = sum(len(row) for row in split)
        shares, calls, stamps = [], [], []
        for number, (devices, row) in enumerate(zip(self._rows, split, strict=False)):
            mine = [next(parts) for _ in row]
            first = sum(len(other) for other in split[:number])
            traces = [self._traces.of_micro_batch(part, first + i, total) for i, part in enumerate(mine)]
            passage = Passage(devices, number)
            for traced, part in zip(traces, mine, strict=True):
                handles = [housed.at_stage(number, stage, traced.captures) for stage in range(len(devices))]
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
        for parameter, column, recipe in zip(self._traces.parameters, inputs, how, strict=True):
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

    def reduced(self, gradients: Sequence[Sequence[Any]], *, first: bool) -> list[list[Any]]:
        sums: list[Any] = [None] * len(self._traces.parameters)
        for mine, devices in self._by_place(len(gradients)):
            of_stage = [[row[i] for i in mine] for row in gradients]
            for i, total in zip(mine, reduce(of_stage, devices, order_for(devices)), strict=True):
                sums[i] = total
        return [sums]

    def sums_itself(self, rows: Sequence[Sequence[Any]]) -> Update | None:
        return None

    def everywhere(self, copies: Sequence[list[Any]]) -> list[list[Any]]:
        (gradients,) = copies
        return self.spread(gradients)

    def updated(self, copies: Sequence[list[Any]], housed: Homes) -> list[Any]:
        update = self._traces.update(copies[0])
        return [self._updated(update, mine, i, housed) for i, mine in enumerate(copies)]

    def _updated(self, update: Update, gradients: list[Any], row: int, housed: Homes) -> Any:
        if (update, row) not in self._functions:
            self._functions[update, row] = update.placed(self._homes, self._places[row])
        handles = update.bound(housed.update_bindings(row, update.captures))
        with tf.name_scope(f"update_{row}"):
            return update.call(components(gradients), handles, self._functions[update, row])

    def spread(self, gradients: list[Any]) -> list[list[Any]]:
        """The gradients once for every row, each where its parameter lives."""
        rows: list[list[Any]] = [[None] * len(gradients) for _ in self._rows]
        for mine, devices in self._by_place(len(rows)):
            copies = spread([gradients[i] for i in mine], devices, order_for(devices))
            for row, copy in zip(rows, copies, strict=True):
                for i, gradient in zip(mine, copy, strict=True):
                    row[i] = gradient
        return rows

    def _by_place(self, num_rows: int) -> Iterator[tuple[list[int], list[str]]]:
        """The parameters of each place, by their positions, and the place's devices in some rows."""
        places = [self._place_of[parameter.ref()] for parameter in self._traces.parameters]
        for place in range(len(self._places[0])):
            mine = [i for i, at in enumerate(places) if at == place]
            yield mine, [row[place] for row in self._places[:num_rows]]

    def culprit(self, worker: int, bad: Sequence[str]) -> str:
        places = [self._place_of[p.ref()] for p in self._traces.parameters if p.name in bad[:1]]
        return self._places[worker][places[0]] if places else self._rows[worker][-1]

    def update_devices(self) -> dict[tuple[int, str], str]:
        return {
            (row, node): self._places[row][at]
            for update, row in self._functions
            for node, at in update.owner_of_node.items()
        }

    def links(self) -> Links:
        """Gradients between the rows, to the first and back; what crosses between stages is not counted."""
        links: Links = defaultdict(float)
        for mine, devices in self._by_place(len(self._rows)):
            held = sum(num_bytes(self._traces.parameters[i]) for i in mine)
            for source, target in (pair for pairs in order_for(devices) for pair in pairs):
                links[devices[source], devices[target]] += held
                links[devices[target], devices[source]] += held
        return {pair: size for pair, size in links.items() if size}


def _accumulated(column: Sequence[tuple[Any, Any]], recipe: Recipe) -> tuple[Any, Any]:
    """A gradient of all micro-batches, added up as they come, so that one copy is kept and not all.

    Takes the gradients with the sizes of their pieces, and gives both for the sum.
    """
    cuts = [cut(gradient, sizes, recipe) for gradient, sizes in column if gradient is not None]
    return joined([add(parts) for parts in zip(*cuts, strict=True)] or [None], recipe, len(cuts))
