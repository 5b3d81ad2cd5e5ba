"""Measures how long each layer takes on this machine, so that the stages can be balanced."""

import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

from colonnade.reason.schedules.layer_split import Layer
from colonnade.run.batch.split import Arguments, is_tensor
from colonnade.run.batch.zeros import skeleton, zeros_for
from colonnade.run.memory.dry_run import Function, Job, JobMemory, dry_run
from colonnade.run.memory.estimate import job_of
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.pipeline.layers import MISTAKES, Chain, Network, Stage, misfit
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.stage_cut import StageCut
from colonnade.run.variables.homes import Homes

# Of so many runs of a layer the fastest counts.
REPEATS = 3
# Layers one by one take less than a stage of them, whose ops run at the same time.
HEADROOM = 1.1


def measured(
    layers: Chain | Network,
    values: dict[Hashable, Any],
    training: bool | None,
    device: str,
    optimizer: Any = None,
    *,
    with_memory: bool = False,
) -> list[Layer]:
    """Time for forward and backward of every layer, one after the other, on inputs like `values`.

    The inputs are zeros. Variables are read where they are; what a layer changes, it changes in a copy.
    `with_memory` asks for an estimate of the bytes as well, with what `optimizer` keeps.
    """
    known = tf.nest.map_structure(_spec, values)
    # A thread of its own knows nothing of the function that is being traced in this one: inside it no
    # tape would record, not even in an init_scope.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_measured, layers, known, training, device, optimizer, with_memory).result()


def _measured(
    layers: Chain | Network,
    shapes: dict[Hashable, Any],
    training: bool | None,
    device: str,
    optimizer: Any,
    with_memory: bool,
) -> list[Layer]:
    known = tf.nest.map_structure(zeros_for, shapes)
    seconds, works = [], []
    for i in range(len(layers.names)):
        stage = layers.stage(i, i + 1)
        taken = Arguments(([known[key] for key in stage.takes],), {})
        try:
            works.append(_Work(stage, taken, training))
            time, results = _timed(works[-1], taken, device)
        except MISTAKES as error:
            values = [leaf.value for leaf in taken.leaves]
            raise misfit(f"layer {i}", stage.name, "what it gets", values, error) from None
        known.update(zip(stage.gives, results, strict=True))
        seconds.append(time)
    costs: list[tuple[int, int, int]] = [(0, 0, 0)] * len(works)
    if with_memory:
        measured = dry_run([work.job(optimizer) for work in works])
        costs = [work.bytes(one) for work, one in zip(works, measured, strict=True)]
    return [
        Layer(name, time, *cost, sum(map(num_bytes, work.parameters)), work.given)
        for name, time, cost, work in zip(layers.names, seconds, costs, works, strict=True)
    ]


class _Work(Traced):
    """A layer traced with its gradient, as a pipeline of one stage."""

    def __init__(self, stage: Stage, taken: Arguments, training: bool | None) -> None:
        self.parameters: list[tf.Variable] = []
        self._taken = taken

        def both(values):  # type: ignore[no-untyped-def]
            stage_marks = self._context.stage_marks
            stage_marks.enter(stage.name, 1)
            with tf.GradientTape() as tape:
                smooth = _floats(values)
                tape.watch(smooth)
                results = stage.call(values, training)
                ends = _floats(results)
                total = stage_marks.turn(
                    tf.add_n([tf.cast(tf.reduce_sum(t), tf.float32) for t in ends] or [0.0])
                )
            self.parameters = list(tape.watched_variables())
            gradients = tape.gradient(total, [*smooth, *self.parameters])
            return {
                "results": results,
                "inputs": gradients[: len(smooth)],
                "gradients": gradients[len(smooth) :],
            }

        super().__init__(both, taken)

    @property
    def given(self) -> int:
        """Bytes of what the layer returns."""
        leaves = tf.nest.flatten(self.structure["results"], expand_composites=True)
        return sum(
            num_bytes(leaf) for leaf in leaves if tf.is_tensor(leaf) or isinstance(leaf, tf.TensorSpec)
        )

    def job(self, optimizer: Any) -> Job:
        gradients = self.pack(self.leaves([t.name for t in self.concrete.outputs]))["gradients"]
        parts = StageCut(self, 1).parts.values()
        functions = [Function.of(p.function, p.inputs, ["start", "end", *p.outputs]) for p in parts]
        return job_of(self, self.parameters, gradients, optimizer, skeleton(self._taken), functions)

    def bytes(self, measured: JobMemory) -> tuple[int, int, int]:
        """What stays, what a micro-batch leaves until it comes back, and what work takes besides."""
        there, back = measured.functions[0], measured.functions[-1]
        gradients = sum(map(num_bytes, self.parameters))
        left = max(0, there.after - there.before) if len(measured.functions) > 1 else 0
        # A new gradient is there beside the sum of those before it.
        kept = sum(map(num_bytes, self.variables)) + measured.slots + 2 * gradients
        working = max(there.peak - there.before - left, back.peak - back.before - gradients, 0)
        return round(HEADROOM * kept), round(HEADROOM * left), round(HEADROOM * working)


def _floats(nest: Any) -> list[Any]:
    leaves = tf.nest.flatten(nest, expand_composites=True)
    return [leaf for leaf in leaves if tf.is_tensor(leaf) and leaf.dtype.is_floating]


def _timed(traced: Traced, taken: Arguments, device: str) -> tuple[float, Sequence[Any]]:
    handles = Homes("shared", [device], [], []).bindings(0, traced.captures)
    times = []
    for _ in range(1 + REPEATS):
        begin = time.perf_counter()
        leaves = traced.on(device, taken.components(), handles)
        for leaf in leaves:
            if isinstance(leaf, tf.Tensor):
                leaf.numpy()  # on a card, only what has arrived here has been computed
        times.append(time.perf_counter() - begin)
    return min(times[1:]), traced.pack(leaves)["results"]


def _spec(value: Any) -> Any:
    """What is known of a value, without the graph that it is from."""
    return tf.type_spec_from_value(value) if is_tensor(value) else value
