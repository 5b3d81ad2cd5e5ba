"""Checks the arguments of `cn.Trainer` and of its fit: all that is wrong is said at once."""

from collections.abc import Iterator, Sequence
from typing import Any

from colonnade.errors import InvalidArgument, Problem, whole
from colonnade.hardware import devices as hardware
from colonnade.hardware.clusters.joining import joined
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.data.feed import is_generator
from colonnade.run.data.iterator_state import generator_problem
from colonnade.run.machines.peers import Peers, outside
from colonnade.run.move.reductions import reduce_problems, value_problems
from colonnade.run.parallel.compilation import compile_problems
from colonnade.run.parallel.parallel import Devices
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.sync.periodic import DiLoCo, Elastic, LocalSGD


def of_training(loss: Any, optimizer: Any) -> Iterator[Problem]:
    if not callable(loss):
        yield Problem(
            "loss", loss, "must be a function of a batch", "Pass the function itself, not its value"
        )
    if not all(hasattr(optimizer, name) for name in ("apply", "build", "scale_loss")):
        yield Problem("optimizer", optimizer, "must be a Keras 3 optimizer", "Try keras.optimizers.Adam()")


def of_options(penalty: Any, on_nan: Any, reduce: Any) -> Iterator[Problem]:
    if penalty is not None and not callable(penalty):
        yield Problem("penalty", penalty, "must be a function without arguments", "Wrap it: lambda: ...")
    if on_nan not in ("stop", "skip"):
        yield Problem("on_nan", on_nan, "must be stop or skip", "Leave it out to stop")
    yield from value_problems(reduce)


def resolved(devices: Devices | Pipeline) -> tuple[tuple[str, ...], Sequence[Problem]]:
    """The devices, or what is wrong with them: told with all else that is."""
    if isinstance(devices, Pipeline):
        return devices.devices, ()
    try:
        return hardware.resolve(devices, "Trainer()"), ()
    except InvalidArgument as error:
        return (), error.problems


def of_pipeline(pipeline: Pipeline | None, sync: Any, variables: Any) -> Iterator[Problem]:
    if pipeline is not None and sync != Synchronous():
        rule = "has no meaning for a pipeline, whose rows work in lockstep"
        yield Problem("sync", sync, rule, "Leave it out")
    if pipeline is not None and variables != "auto":
        rule = "has no meaning for a pipeline, whose variables live with their stages"
        yield Problem("variables", variables, rule, "Leave it out")


def of_machines(pipeline: Pipeline | None, sync: Any) -> Iterator[Problem]:
    """What does not work where several machines train together, each by its name."""
    yield from outside()
    if joined() is None:
        return
    fix = 'Use cn.Synchronous(), cn.LocalSGD(..., across="machines"), or train on one machine'
    if pipeline is not None:
        rule = "is for the devices of one machine"
        yield Problem("devices", "a cn.Pipeline", rule, "Pass plain devices, or train on one machine")
    elif isinstance(sync, Synchronous) and sync.shares != "even" and sync.data == "sharded":
        rule = 'divides batches that all machines have, and with data="sharded" each brings its own rows'
        yield Problem("shares", sync.shares, rule, 'Leave it out, or use data="whole"')
    elif not isinstance(sync, Synchronous) and getattr(sync, "across", None) != "machines":
        rule = "is for the devices of one machine"
        yield Problem("sync", type(sync).__name__, rule, fix)


def of_reduce(
    reduce: str, devices: Sequence[str], mode: str, sync: Any, pipeline: Pipeline | None
) -> Iterator[Problem]:
    """What `reduce=` does not go with; all other arguments are right."""
    yield from reduce_problems(
        reduce,
        devices,
        mode,
        synchronous=isinstance(sync, Synchronous) and pipeline is None,
        joins=isinstance(sync, LocalSGD | DiLoCo | Elastic),
        machines=joined() is not None,
    )


def of_compiling(wanted: Any, sync: Any, pipeline: Pipeline | None) -> Iterator[Problem]:
    """What is wrong with `compile=`."""
    alone = isinstance(sync, Synchronous)
    yield from compile_problems(wanted, synchronous=alone, pipelined=pipeline is not None)
    if wanted and joined() is not None:
        rule = "is for the devices of one machine"
        yield Problem("compile", wanted, rule, "Leave it out, or train on one machine")


def of_own_data(peers: Peers, checkpoint: Any) -> Iterator[Problem]:
    """What does not go with data that each machine brings for itself."""
    if peers.sharded and isinstance(checkpoint, Checkpoint) and checkpoint.data == "exact":
        rule = 'saves the place in the data of one machine, and with data="sharded" each has data of its own'
        fix = 'Choose cn.Checkpoint(..., data="skip"), which takes as many machines as before, or "restart"'
        yield Problem("checkpoint.data", "exact", rule, fix)


def of_fit(data: Any, steps: Any, epochs: Any, log_every: Any, checkpoint: Any) -> Iterator[Problem]:
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        rule, fix = "must be a cn.Checkpoint", "Try cn.Checkpoint('runs/first', every=1000)"
        yield Problem("checkpoint", checkpoint, rule, fix)
    elif checkpoint is not None and checkpoint.data == "exact" and is_generator(data):
        yield generator_problem(data)
    if isinstance(data, Iterator) and isinstance(epochs, int) and epochs > 1:
        rule = "asks for data that can be gone through again; an iterator is at its end after once"
        yield Problem("epochs", epochs, rule, "Pass a list of batches, or a tf.data.Dataset.from_generator")
    for name, value, optional in (
        ("steps", steps, True),
        ("epochs", epochs, True),
        ("log_every", log_every, False),
    ):
        if not (optional and value is None):
            yield from whole(name, value, 1, like=10)


def of_callbacks(callbacks: Any) -> Iterator[Problem]:
    given = callbacks if isinstance(callbacks, list | tuple) else None
    if given is None or not all(callable(callback) for callback in given):
        rule = "must be a list of functions that are called with a Record"
        fix = "Try callbacks=[lambda record: record.loss < 0.1]; Keras's callbacks are for cn.fit"
        yield Problem("callbacks", callbacks, rule, fix)
