"""What a pipeline cannot train, told from the traces of its micro-batches."""

from collections.abc import Iterator, Sequence

from colonnade.errors import Problem
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.step.objective import Objective
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import differentiated_python
from colonnade.run.variables.parts import home_of


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
