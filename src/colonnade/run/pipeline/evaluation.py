"""Evaluation in a pipeline: forward only, every example counted exactly once."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from colonnade.errors import check
from colonnade.reason.schedules.schedule import forward
from colonnade.run.batch.split import Arguments
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.pipeline.refusals import refusals
from colonnade.run.pipeline.tasks import Passage
from colonnade.run.step.evaluation import Evaluation, Score
from colonnade.run.trace.concrete import hosted
from colonnade.run.trace_cut.stage_cut import StageCut


class PipelineEvaluation(Evaluation):
    """Runs a loss function over data in a pipeline; variables are read where they are."""

    def __init__(self, pipeline: Pipeline, loss: Callable[..., Any]) -> None:
        super().__init__(getattr(loss, "python_function", loss), pipeline.devices)
        self._pipeline = pipeline

    def _trace(self, part: Arguments, replica: int, num_replicas: int) -> Score:
        return self._scores.of_micro_batch(part, replica, num_replicas)

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
                    self._housed.bindings(row * len(stages) + stage, traced.captures)

        def sums(*components: Any) -> Any:
            parts = zip(arguments.with_components(components).parts(flat), traces, strict=True)
            per_micro_batch = []
            for number, row in enumerate(split):
                passage = Passage(pipeline.rows[number], number)
                mine = [next(parts) for _ in row]
                for part, traced in mine:
                    replicas = [number * len(stages) + stage for stage in stages]
                    handles = [self._housed.bindings(i, traced.captures) for i in replicas]
                    passage.add(traced, legs[traced], part.components(), handles)
                passage.run(forward(len(stages), len(row)))
                per_micro_batch += [traced.pack(passage.leaves(i)) for i, (_, traced) in enumerate(mine)]
            return tf.nest.map_structure(lambda *values: tf.add_n(values), *per_micro_batch)

        specs = [tf.TensorSpec(c.shape, c.dtype) for c in arguments.components()]
        return hosted(sums, *specs)
