"""A fit of a few steps for the sake of its profile, and the timeline that is made of what TensorFlow saw."""

import warnings
from collections.abc import Callable
from typing import Any

from colonnade.describe.timeline import Timeline
from colonnade.errors import InvalidArgument, Problem, check, whole
from colonnade.hardware.placement import short
from colonnade.hardware.profile import ProfiledOp
from colonnade.run.asynchronous.engine import AsynchronousEngine
from colonnade.run.engine.history import History
from colonnade.run.engine.protocols import Engine
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.sync.lockstep import Lockstep
from colonnade.run.trace.op_timeline import Places, op_timeline

# Steps that are not recorded: the first traces, and those after it find their memory.
WARM_UP = 3


def warm_and_profiled(fit: Callable[..., History], data: Any, steps: int, batch_size: int | None) -> Timeline:
    """Train some steps, and then as many as are wanted with a profile."""
    check("profile()", whole("steps", steps, 1, like=5))
    recorded = range(WARM_UP + 1, WARM_UP + 1 + steps)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"profile=.* recorded nothing")  # here that is an error
        made = fit(
            data,
            steps=WARM_UP + steps,
            batch_size=batch_size,
            log_every=steps,
            progress=False,
            profile=recorded,
        )
    if made.timeline is None:
        rule = f"ended before the {WARM_UP + 1} steps that a profile takes at least"
        raise InvalidArgument("profile()", [Problem("data", "a dataset", rule, "Pass more batches")])
    return made.timeline


def timeline_of(
    engine: Engine, pipeline: Pipeline | None, ops: tuple[ProfiledOp, ...], first: int
) -> Timeline:
    """What the ops were, by the devices of this training; `first` is the number of the first step."""
    rows = [[short(device) for device in row] for row in pipeline.rows] if pipeline else []
    updates = engine.workers.update_devices() if isinstance(engine, Lockstep) else {}
    short_names = {key: short(device) for key, device in updates.items()}
    dealt = not isinstance(engine, AsynchronousEngine)
    free = isinstance(engine, AsynchronousEngine) and engine.order is None
    places = Places([short(device) for device in engine.devices], rows, short_names, free, dealt)
    return op_timeline(ops, places, first)
