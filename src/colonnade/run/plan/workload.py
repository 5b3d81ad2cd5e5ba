"""`cn.workload`: what a training step costs on this machine, measured: time, cores, bytes, FLOPs."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.hardware.cores import cores
from colonnade.hardware.placement import short
from colonnade.run.batch.split import Arguments, parameter_names
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.protocols import Settings
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.pipeline.layer_costs import measured
from colonnade.run.pipeline.layers import layers_of
from colonnade.run.sync.lockstep import Lockstep, Synchronous
from colonnade.run.train import checks
from colonnade.run.train.memory import loss_of

# A step is timed for about so long at each size, in rounds; the fastest round counts.
SECONDS, ROUNDS = 1.0, 8
# The smaller of the two batch sizes is so many times smaller: what a step costs before its first example.
SMALLER = 8
# Two devices that reach so many times the speed of one do not take cores from each other.
UNHINDERED = 1.9


@dataclass(frozen=True)
class Pace:
    """Of a step that was timed."""

    seconds: float
    cores: float  # kept busy


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
    with _restored(engine):
        sizes = sorted({max(1, size // SMALLER), size})
        parts = [_part(arguments, rows, size) for rows in sizes]
        paces = [_pace(engine, part) for part in parts]
        overhead = _overhead(parts[-1], engine.devices[0])
        update, addition = _update(engine)
        ahead, crowded = _forward(loss, parts[-1], mode)
        flops = _flops(loss, parts[-1], mode) / size
    floor = overhead + update
    works = [max(pace.seconds - floor, 0.1 * pace.seconds) for pace in paces]
    share = min(max(ahead / works[-1], 0.1), 0.8)
    timings = tuple(
        Timing(rows, share * took, (1 - share) * took) for rows, took in zip(sizes, works, strict=True)
    )
    whole = _whole(engine, arguments, size, timings, flops, memory=memory and layers is None)
    costs = [whole] if layers is None else _divided(whole, layers, arguments, engine, size, memory=memory)
    slots = sum(num_bytes(v) for v in engine.traces.slots)
    return Workload(
        name=name or getattr(loss, "__name__", "workload"),
        layers=tuple(costs),
        batch=size,
        device=short(engine.devices[0]),
        dtype=engine.parameters[0].dtype.name,
        slots=slots,
        update=update,
        input=sum(num_bytes(leaf) for leaf in arguments.components()) // size,
        # A device at work keeps a core busy; where it seems less, other programs had it meanwhile. What two
        # take from each other tells it too, and where these disagree less is promised.
        cores=max(paces[-1].cores, crowded, 1.0),
        overhead=overhead,
        addition=addition,
    )


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
def _restored(engine: Lockstep) -> Iterator[None]:
    """Variables have their values again afterwards: parameters, moving averages, the states of seeds."""
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
    warm = stream.take(2)
    assert warm is not None
    first = stream.take(2)
    assert first is not None
    steps = max(2, int(SECONDS / ROUNDS / max(first.seconds / first.steps, 1e-6)))
    best, busy = first.seconds / first.steps, []
    for _ in range(ROUNDS):
        cpu = time.process_time()
        chunk = stream.take(steps)
        assert chunk is not None
        busy.append((time.process_time() - cpu) / chunk.steps)
        best = min(best, chunk.seconds / chunk.steps)
    engine.leave()
    return Pace(best, min(busy) / best)


def _overhead(part: Arguments, device: str) -> float:
    """Of a step that computes next to nothing on the same batches: the loop, the data, the guard."""
    weight = tf.Variable(0.0)

    def nothing(*values: Any) -> Any:
        rows = next(leaf for leaf in values if getattr(leaf, "shape", None) is not None)
        return tf.zeros([rows.shape[0]]) + 0.0 * weight

    args, _ = part.unpack(part.components())
    values = [leaf for leaf in tf.nest.flatten(list(args)) if isinstance(leaf, tf.Tensor) and leaf.shape.rank]
    if not values:
        return 0.0
    alone = Arguments(tuple(values), {}, ())
    engine = Synchronous().engine(Settings(nothing, keras.optimizers.SGD(0.0), (device,), "shared"))
    engine.prepare(alone)
    return _pace(engine, alone).seconds


def _update(engine: Lockstep) -> tuple[float, float]:
    """Seconds of the update alone, and of adding the gradients of one device to those of another."""
    traces = engine.traces
    specs = [spec for spec in traces.specs if spec is not None]
    update = traces.update(traces.specs)
    handles = [capture.tensor for capture in update.captures]
    flat = tf.nest.flatten(specs, expand_composites=True)
    zeros = [tf.zeros([size or 1 for size in spec.shape], spec.dtype) for spec in flat]
    if update.compiles:
        place = engine.parameters[0].device
        one = _best(lambda: update.at_once([zeros], handles, place))
        two = _best(lambda: update.at_once([zeros, zeros], handles, place))
        return one, max(0.0, two - one)
    applied = tf.function(lambda: update.call(zeros, handles), autograph=False)
    dense = [tensor for tensor in zeros if tensor.dtype.is_floating]
    added = tf.function(lambda: [tf.reduce_sum(a + a) for a in dense], autograph=False)
    return _best(applied), _best(added) if dense else 0.0


def _forward(loss: Callable[..., Any], part: Arguments, mode: dict[str, bool]) -> tuple[float, float]:
    """Seconds of the forward pass, and how many cores one device takes, told from two that run it at once."""
    args, _ = part.unpack(part.components())
    function, names = tf.function(loss), hardware.names()

    def on(device: str) -> Any:
        with tf.device(device):
            return function(*args, **mode)

    alone = _best(lambda: on(names[0]))
    if len(names) < 2 or hardware.are_cards(names):
        return alone, 0.0
    with ThreadPoolExecutor(2) as threads:
        both = _best(lambda: list(threads.map(on, names[:2])))
    gain = max(2 * alone / both, 1.0)
    return alone, cores() / gain if gain < UNHINDERED else 0.0


def _best(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(2 + ROUNDS):
        begin = time.perf_counter()
        for leaf in tf.nest.flatten(call(), expand_composites=True):
            if isinstance(leaf, tf.Tensor):
                leaf.numpy()  # on a card, only what has arrived here has been computed
        times.append(time.perf_counter() - begin)
    return min(times[2:])


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
    sparse = _sparse_gradients(engine, size)
    held, rows = sum(s for s, _ in sparse), sum(r for _, r in sparse)
    return LayerCost("loss", flops, parameters, kept, timings=tuple(timings), sparse=held, rows=rows)


def _sparse_gradients(engine: Lockstep, size: int) -> list[tuple[int, int]]:
    """Of parameters whose gradients are rows: bytes, and bytes of the rows that an example touches.

    Where only the run tells how many rows there are, they count as all.
    """
    rows = []
    traced = engine.traces.objectives[0].structure.gradients
    for parameter, gradient in zip(engine.parameters, traced, strict=True):
        if isinstance(gradient, tf.IndexedSlices | tf.IndexedSlicesSpec):
            values = getattr(gradient, "values", None)
            known = values is not None and values.shape.is_fully_defined()
            touched = num_bytes(values) + num_bytes(gradient.indices) if known else num_bytes(parameter)
            rows.append((num_bytes(parameter), -(-touched // size)))
    return rows


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
    sparse = dict(_sparse_gradients(engine, size))
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
            timings=tuple(
                Timing(t.batch, t.forward * layer.seconds / total, t.backward * layer.seconds / total)
                for t in whole.timings
            ),
        )
        for layer in each
    ]
