"""`cn.workload`: what a training step costs on this machine, measured: time, cores, bytes, FLOPs."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import short
from colonnade.run.batch.split import Arguments, parameter_names
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.gradients import components, slices
from colonnade.run.engine.protocols import Settings
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.pipeline.layer_costs import measured
from colonnade.run.pipeline.layers import layers_of
from colonnade.run.plan.graph_time import graph_time
from colonnade.run.prove.batch_pace import sparse_gradients
from colonnade.run.sync.lockstep import Lockstep, Synchronous
from colonnade.run.train import checks
from colonnade.run.train.devices_here import devices_here
from colonnade.run.train.memory import loss_of

# A step is timed for about so long at each size, in rounds; the fastest round counts.
SECONDS, ROUNDS = 1.6, 4
# Steps of a call: those up to a log line.
STEPS = 10
# The smaller of the two batch sizes is so many times smaller: what a step costs before its first example.
SMALLER = 8
# Where devices share cores, so many of them are tried at once on batches of the smaller size.
CROWD = 4


@dataclass(frozen=True)
class Pace:
    """Of a step that was timed."""

    seconds: float
    cores: float  # kept busy


@dataclass(frozen=True)
class Work:
    """Loss and gradient of a batch, that were timed."""

    seconds: float
    gain: float | None  # how many times as much several devices do at once; None where each has its own


def workload(
    loss: Any, optimizer: Any, *batch: Any, layers: Any = None, memory: bool = True, name: str = ""
) -> Workload:
    """Measure what a training step costs on the first device of this process.

    Steps are made on the batch, with a copy of the optimizer whose learning rate is 0; variables have their
    values again afterwards. It takes some seconds.

    Args:
        loss: a loss function, as for `cn.Trainer`, or a Keras model.
        optimizer: a Keras optimizer.
        batch: a global batch: what the loss is called with.
        layers: a model or a list of layers, as for `cn.Pipeline`, that the loss calls: then its time is
            divided among them, and a pipeline can be planned. A Keras model in place of the loss is taken for
            that too.
        memory: whether to estimate the bytes of activations, in a process of its own.
        name: of the workload.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> w = tf.Variable([[0.0]])
        >>> def loss(x, y):
        ...     return tf.squeeze((x @ w - y) ** 2, axis=1)
        >>> batch = tf.ones([16, 1]), tf.ones([16, 1])
        >>> work = cn.workload(loss, keras.optimizers.SGD(0.1), *batch, memory=False)
        >>> work.batch, work.parameters, work.timed
        (16, 4, True)
    """
    if isinstance(loss, keras.Model):
        layers, loss = loss if layers is None else layers, loss_of(loss)
    check("workload()", checks.of_training(loss, optimizer))
    names = parameter_names(loss)
    mode = {"training": True} if "training" in names else {}
    arguments = Arguments(tuple(map(_as_tensor, batch)), mode, [n for n in names if n != "training"])
    size = arguments.size("workload()")
    if size is None:
        rule = "has a first dim that is not known"
        raise InvalidArgument("workload()", [Problem("batch", "a batch", rule, "Pass tensors")])
    engine = _engine(loss, _still(optimizer))
    engine.prepare(arguments)
    sizes = sorted({max(1, size // SMALLER), size})
    parts = [_part(arguments, rows, size) for rows in sizes]
    with _restored(engine, parts):
        # Pieces before whole steps: the first seconds of all, in which memory is got, are the slowest, and
        # what a step takes beside its pieces is a small difference.
        works = [
            _work(engine, part, crowd) for part, crowd in zip(parts, (CROWD, 2)[-len(parts) :], strict=True)
        ]
        paces = [_pace(engine, part) for part in parts]
        update, addition = _update(engine, parts[-1])
        ahead = _forward(loss, parts[-1], mode)
        flops = _flops(loss, parts[-1], mode) / size
    # Parts that take longer by themselves than all of them together, as in one graph some run beside others,
    # are taken to be shorter.
    update *= min(1.0, paces[-1].seconds / (works[-1].seconds + update))
    # What no size can do without is the loop around the step, the data, the guard. What else a step takes
    # beside its pieces is work that in the loop keeps fewer cores busy, which several devices at once make
    # up for.
    overhead = max(0.0, min(p.seconds - w.seconds for p, w in zip(paces, works, strict=True)) - update)
    share = min(max(ahead / works[-1].seconds, 0.1), 0.8)
    timings = tuple(
        _timing(rows, pace.seconds - update - overhead, work, share)
        for rows, pace, work in zip(sizes, paces, works, strict=True)
    )
    whole = _whole(engine, arguments, size, timings, flops, memory=memory and layers is None)
    costs = [whole] if layers is None else _divided(whole, layers, arguments, engine, size, memory=memory)
    slots = sum(num_bytes(v) for v in engine.traces.slots)
    return Workload(
        name=name or getattr(loss, "__name__", "workload"),
        layers=tuple(costs),
        batch=size,
        device=_timed_on(engine.devices[0]),
        dtype=engine.parameters[0].dtype.name,
        slots=slots,
        update=update,
        input=sum(num_bytes(leaf) for leaf in arguments.components()) // size,
        # A device at work keeps a core busy; where it seems less, other programs had it meanwhile.
        cores=max(paces[-1].cores, 1.0),
        overhead=overhead,
        addition=addition,
        fits_known=memory,
    )


def _timing(rows: int, seconds: float, work: Work, share: float) -> Timing:
    """Of loss and gradient as they are made in the loop; several devices at once take what was measured."""
    seconds = max(seconds, 0.1 * work.seconds)
    gain = None if work.gain is None else work.gain * seconds / work.seconds
    return Timing(rows, share * seconds, (1 - share) * seconds, gain)


def _timed_on(device: str) -> str:
    """A card by its model, so that a plan for another machine knows what was timed."""
    model = devices_here().devices[0].name if hardware.are_cards([device]) else ""
    return short(device) if not model or model.startswith("device ") else model


def _as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if hasattr(value, "__array__") and not tf.is_tensor(value) else value


def _engine(loss: Callable[..., Any], optimizer: Any) -> Lockstep:
    device = hardware.names()[0]
    return Synchronous().engine(Settings(loss, optimizer, (device,), "shared"))


def _still(optimizer: Any) -> Any:
    """A copy of an optimizer that works as hard and moves nothing."""
    config = optimizer.get_config()
    return type(optimizer).from_config({**config, "learning_rate": 0.0, "name": "measured"})


@contextmanager
def _restored(engine: Lockstep, parts: Sequence[Arguments]) -> Iterator[None]:
    """Variables have their values again afterwards: parameters, moving averages, the states of seeds."""
    for part in parts:
        engine.prepare(part)
    variables = list({v.ref(): v for trace in engine.traces.objectives for v in trace.variables}.values())
    before = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        engine.leave()
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _part(arguments: Arguments, rows: int, size: int) -> Arguments:
    """The first rows of a batch."""
    return arguments if rows == size else arguments.parts([rows, size - rows])[0]


def _pace(engine: Lockstep, part: Arguments) -> Pace:
    """Of whole steps, as `fit` makes them: many in one call."""
    args, kwargs = part.unpack(part.components())
    dataset = tf.data.Dataset.from_tensors(tuple(args)).repeat()
    names = [leaf for leaf in part.structure if leaf not in kwargs]
    engine.enter()
    stream = engine.loop(lambda outcome, _: outcome.loss).stream(FitData(dataset, names, kwargs))
    for _ in range(2):
        stream.take(2)
    rounds = [_round(stream) for _ in range(ROUNDS)]
    engine.leave()
    return min(rounds, key=lambda pace: pace.seconds)


def _round(stream: Any) -> Pace:
    """Some calls of as many steps as `fit` makes in one by default."""
    seconds, steps, cpu = 0.0, 0, time.process_time()
    while seconds < SECONDS / ROUNDS:
        chunk = stream.take(STEPS)
        seconds, steps = seconds + chunk.seconds, steps + chunk.steps
    return Pace(seconds / steps, (time.process_time() - cpu) / seconds)


def _work(engine: Lockstep, part: Arguments, crowd: int) -> Work:
    """Of loss and gradient on one device, and what several gain that compute them at once."""
    given = _given(part)
    traced, names = engine.traces.objective(given, 0, 1), hardware.names()
    handles = engine.housed.bindings(0, traced.captures)

    def at_once(count: int) -> float:
        devices = names[:count]
        return graph_time(
            lambda: [traced.on(d, given.components(), handles, replica=i) for i, d in enumerate(devices)]
        )

    alone = at_once(1)
    if len(names) < 2 or hardware.are_cards(names):
        return Work(alone, None)
    together = min(crowd, len(names))
    return Work(alone, together * alone / at_once(together))


def _given(part: Arguments) -> Arguments:
    """As a replica is given its slice."""
    (given,) = slices(part, [part.size("workload()") or 1])
    return given


def _update(engine: Lockstep, part: Arguments) -> tuple[float, float]:
    """Seconds of the update alone, and of adding the gradients of one device to those of another."""
    given = _given(part)
    traced = engine.traces.objective(given, 0, 1)
    leaves = traced.on(engine.devices[0], given.components(), engine.housed.bindings(0, traced.captures))
    gradients = traced.pack(leaves).gradients
    update, flat = engine.traces.update(gradients), components(gradients)
    handles = [capture.tensor for capture in update.captures]
    # An update gives nothing back; what it has written tells that it is over.
    written = min(engine.parameters, key=num_bytes)
    place = engine.parameters[0].device
    if update.sums:
        # Copies, for what was just read is read again much faster.
        rows = [flat, *([tensor + 0 for tensor in flat] for _ in range(CROWD - 1))]
        one = graph_time(lambda: [update.at_once(rows[:1], handles, place), written.read_value()])
        some = graph_time(lambda: [update.at_once(rows, handles, place), written.read_value()])
        return one, max(0.0, some - one) / (CROWD - 1)
    dense = [(g, g + 0) for g in gradients if isinstance(g, tf.Tensor)]
    added = graph_time(lambda: [mine + others for mine, others in dense]) if dense else 0.0
    apply = partial(update.at_once, [flat], device=place) if update.compiles else partial(update.call, flat)
    return graph_time(lambda: [apply(handles=handles), written.read_value()]), added


def _forward(loss: Callable[..., Any], part: Arguments, mode: dict[str, bool]) -> float:
    """Seconds of the forward pass."""
    args, _ = part.unpack(part.components())
    function, device = tf.function(loss), hardware.names()[0]

    def ahead() -> Any:
        with tf.device(device):
            return function(*args, **mode)

    return graph_time(ahead)


def _flops(loss: Callable[..., Any], part: Arguments, mode: dict[str, bool]) -> float:
    """Of the forward pass on this batch, as far as TensorFlow knows how many its ops have."""
    args, _ = part.unpack(part.components())
    graph = tf.function(loss).get_concrete_function(*args, **mode).graph
    options = tf.compat.v1.profiler.ProfileOptionBuilder.float_operation()
    options["output"] = "none"
    log = tf.get_logger()
    level = log.level
    log.setLevel("ERROR")  # it warns of how it counts
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            counted = tf.compat.v1.profiler.profile(graph, options=options)
    finally:
        log.setLevel(level)
    return float(counted.total_float_ops) if counted is not None else 0.0


def _whole(
    engine: Lockstep,
    arguments: Arguments,
    size: int,
    timings: Sequence[Timing],
    flops: float,
    *,
    memory: bool,
) -> LayerCost:
    """The loss as one layer."""
    kept = engine.memory(arguments).devices[0].activations // size if memory else 0
    parameters = sum(map(num_bytes, engine.parameters))
    sparse = sparse_gradients(engine.traces.objectives[0], engine.parameters, size)
    held, rows = sum(s for s, _ in sparse), sum(r for _, r in sparse)
    pieces = tuple(map(num_bytes, engine.parameters))
    return LayerCost(
        "loss", flops, parameters, kept, timings=tuple(timings), sparse=held, rows=rows, pieces=pieces
    )


def _pieces(left: list[int], size: int) -> tuple[int, ...]:
    """Of the sizes of variables that are left, those of the next layer; none where they do not add up.

    >>> _pieces([3, 1, 5], 4)
    (3, 1)
    """
    count = next((i for i in range(len(left) + 1) if sum(left[:i]) >= size), 0)
    if sum(left[:count]) != size:
        return ()
    taken = tuple(left[:count])
    del left[:count]
    return taken


def _divided(
    whole: LayerCost, layers: Any, arguments: Arguments, engine: Lockstep, size: int, *, memory: bool
) -> list[LayerCost]:
    """The loss divided among the layers that it calls, in proportion to what each takes by itself."""
    chain = layers_of(layers)
    args, _ = arguments.unpack(arguments.components())
    given = args[:1] if len(args) > 1 else args
    each = measured(
        chain, chain.taken(tuple(given)), True, engine.devices[0], engine.optimizer, with_memory=memory
    )
    total = sum(layer.seconds for layer in each) or 1.0
    # Which layer has a sparse parameter is told by its size; one that no layer has alone counts as dense.
    sparse = dict(sparse_gradients(engine.traces.objectives[0], engine.parameters, size))
    left = list(whole.pieces)
    return [
        replace(
            whole,
            name=layer.name,
            flops=whole.flops * layer.seconds / total,
            parameters=layer.parameters,
            activations=max(layer.activations // size, layer.output // size),
            output=layer.output // size,
            sparse=layer.parameters if layer.parameters in sparse else 0,
            rows=sparse.get(layer.parameters, 0),
            pieces=_pieces(left, layer.parameters),
            timings=tuple(
                Timing(t.batch, t.forward * layer.seconds / total, t.backward * layer.seconds / total, t.gain)
                for t in whole.timings
            ),
        )
        for layer in each
    ]
