"""How long one device takes for its slice of the first batch, and for the update: timed before training.

The slice is computed from the trace that the training uses, some times at most. All that it or the update
writes is written to copies, which are gone afterwards.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.workload import Workload
from colonnade.hardware.placement import short
from colonnade.reason.simulator.layer_time import BACKWARD
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import components, slices
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.protocols import Engine
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.step.objective import Objective, Share
from colonnade.run.step.update import Update
from colonnade.run.trace.captures import Capture
from colonnade.run.variables.homes import copy_of

# Calls that are timed, after one that is not; no more than two once they have taken so many seconds.
CALLS, SECONDS = 4, 0.02


def batch_pace(engine: Engine, batch: Arguments) -> Workload:
    """What a step on such a batch costs, with the loss as one layer; all is prepared for the batch."""
    counts, traces = engine.cut(batch), engine.traces
    part = slices(with_zeros(batch), counts)[0]
    traced: Objective = traces.objective(part, 0, len(counts))
    device = engine.devices[0]
    copies = _copies([capture for capture in traced.captures if capture.written])
    own = engine.housed.bindings(0, traced.captures) if isinstance(engine, GraphEngine) else {}
    bound, results = {**own, **_handles(copies)}, list[Share]()

    def compute() -> Any:
        share = traced.pack(traced.on(device, part.components(), bound))
        results[:] = [share]
        return [share.loss, share.health]

    seconds, cores = _timed(compute)
    update, addition = _update(engine, results[0], len(counts))
    sparse = sparse_gradients(traced, engine.parameters, counts[0])
    whole = LayerCost(
        "loss",
        parameters=sum(map(num_bytes, engine.parameters)),
        timings=(Timing(counts[0], seconds / (1 + BACKWARD), seconds * BACKWARD / (1 + BACKWARD)),),
        sparse=sum(held for held, _ in sparse),
        rows=sum(rows for _, rows in sparse),
    )
    return Workload(
        "the first batch",
        (whole,),
        batch=sum(counts),
        device=short(device),
        dtype=engine.parameters[0].dtype.name,
        slots=sum(map(num_bytes, traces.slots)),
        update=update,
        input=sum(num_bytes(leaf) for leaf in batch.components()) // sum(counts),
        cores=max(cores, 1.0),
        addition=addition,
    )


def sparse_gradients(
    traced: Objective, parameters: Sequence[tf.Variable], size: int
) -> list[tuple[int, int]]:
    """Of parameters whose gradients are rows: bytes, and those of the rows that one of `size` examples has.

    Where only the run tells how many rows there are, they count as all.
    """
    rows = []
    for parameter, gradient in zip(parameters, traced.structure.gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices | tf.IndexedSlicesSpec):
            values = getattr(gradient, "values", None)
            known = values is not None and values.shape.is_fully_defined()
            touched = num_bytes(values) + num_bytes(gradient.indices) if known else num_bytes(parameter)
            rows.append((num_bytes(parameter), -(-touched // size)))
    return rows


def _copies(captures: Sequence[Capture]) -> dict[Any, tf.Variable]:
    """Copies of the captured variables, by the ref of each."""
    variables = [capture.variable for capture in captures if capture.variable is not None]
    return {variable.ref(): copy_of(variable, variable.device) for variable in variables}


def _handles(copies: dict[Any, tf.Variable]) -> dict[Any, Any]:
    return {ref: copy.handle for ref, copy in copies.items()}


def _update(engine: Engine, share: Share, num_slices: int) -> tuple[float, float]:
    """Seconds of the update, and of adding the gradients of one device to those of another.

    A training on virtual devices may have XLA compile both; to do it here would take longer than it tells.
    """
    update: Update = engine.traces.update(share.gradients)
    copies = _copies(update.captures)
    handles, flat = update.bound(_handles(copies)), components(share.gradients)
    # An update gives nothing back; what it has written tells that it is over.
    written = min((copies[p.ref()] for p in engine.parameters if p.ref() in copies), key=num_bytes)
    dense = [tensor for tensor in flat if tensor.dtype.is_floating]
    alone = num_slices == 1 or not dense
    addition = 0.0 if alone else _timed(lambda: [tensor + tensor for tensor in dense][-1])[0]
    return _timed(lambda: [update.call(flat, handles), written.read_value()])[0], addition


def _timed(call: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the fastest of some calls, and how many cores were busy meanwhile."""
    call()
    best, cores, spent = float("inf"), 1.0, 0.0
    for number in range(CALLS):
        busy, begin = time.process_time(), time.perf_counter()
        for leaf in tf.nest.flatten(call()):
            if leaf is not None:
                leaf.numpy()  # on a card, only what has arrived here has been computed
        took = time.perf_counter() - begin
        if took < best:
            best, cores = took, (time.process_time() - busy) / took
        spent += took
        if number and spent > SECONDS:
            break
    return best, cores
