"""`cn.parallel` and `cn.make_parallel`: split the arguments, run a replica per device, join the results."""

import functools
import re
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.describe.timeline import Timeline
from colonnade.errors import ColonnadeError, InvalidArgument, PlacementError, Problem, check, whole
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import Placement, placement, short
from colonnade.hardware.profile import Recording
from colonnade.run.batch.split import Arguments, Whole, is_tensor, parameter_names, sizes
from colonnade.run.batch.widths import Widths, kind_of
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.parallel.compilation import Compilation, compile_problems
from colonnade.run.parallel.compiled_replica import CompiledReplica, immovable
from colonnade.run.parallel.join import check_join, join_leaf
from colonnade.run.parallel.uncompilable import uncompilable
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.op_timeline import Places, op_timeline
from colonnade.run.trace.traced import Traced, Voice
from colonnade.run.trace_cut.other_shapes import shapes_from
from colonnade.run.trace_cut.sync_cut import refusals

Devices = int | Sequence[int | str] | None


class Parallel:
    """A function that runs on several devices; made by `parallel`."""

    def __init__(
        self, fn: Callable[..., Any], devices: Sequence[str], join: str, compile: bool | str = False
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._fn = fn
        self._join = join
        self._names = parameter_names(fn)
        self._where = f"parallel({getattr(fn, '__name__', type(fn).__name__)})"
        self._traces = TraceCache(self._traced, devices, version=_seed)
        self._graphs: dict[Hashable, Any] = {}
        self._compilation = Compilation(compile, self._where)
        self._with_xla: dict[tuple[Traced, str], CompiledReplica] = {}
        self._widths = Widths()
        self._follow: dict[Hashable, list[bool]] = {}  # by the kind of a slice: which outputs do
        self.devices = tuple(devices)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(Arguments(args, kwargs, self._names))

    @property
    def traces(self) -> list[Traced]:
        """The traces of the function so far."""
        return list(self._traces)

    @property
    def compiled(self) -> str | None:
        """What became of `compile=`, and why; None where nobody asked."""
        return self._compilation.verdict

    @tf.autograph.experimental.do_not_convert
    def run(self, arguments: Arguments) -> Any:
        """Call the function with arguments whose roles are settled."""
        if not tf.executing_eagerly():
            return self._build(arguments)
        arguments = self._widths.opened(arguments)
        key = (arguments.key(), _seed(), self._compilation.on)
        known = key in self._graphs
        if not known:
            try:
                self._graphs[key] = self._compile(arguments)
            except ColonnadeError as mistake:
                # The user's own mistake, without the frames of TensorFlow's tracing around it.
                raise mistake.with_traceback(None) from None
        concrete, structure = self._graphs[key]
        try:
            leaves = iter(self._timed(concrete, arguments, counts=known))
        except tf.errors.OpError as error:
            raise self._explained(error, arguments) from None
        return structure.pack([next(leaves) if is_tensor(leaf) else leaf for _, leaf in structure.paths()])

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Work as a method where a method is decorated."""
        return self if instance is None else functools.partial(self.__call__, Whole(instance))

    def placement(self, *args: Any, strict: bool = False, **kwargs: Any) -> Placement:
        """Run forward and backward once and report which op ran where.

        With `strict=True`, an op of a replica that ran on another device is an error; accesses to
        variables run where the variable lives and do not count.
        """

        report = placement(self._both, *args, **kwargs)
        if strict:
            self._check(report)
        return report

    def profile(self, *args: Any, calls: int = 5, **kwargs: Any) -> Timeline:
        """Run forward and backward a few times, and record where the time goes.

        Args:
            *args, **kwargs: what the function takes.
            calls: how many to record; one more comes before them, in which TensorFlow traces.

        Returns:
            A `Timeline`, in which every call is a step.
        """
        check(self._where, whole("calls", calls, 1, like=5))
        both = tf.function(self._both, autograph=False)
        both(*args, **kwargs)
        recording = Recording()
        recording.start()
        try:
            for _ in range(calls):
                results = both(*args, **kwargs)
            tf.nest.map_structure(lambda result: result.numpy() if is_tensor(result) else None, results)
        finally:
            ops = recording.stop()
        return op_timeline(ops, Places([short(device) for device in self.devices]))

    def _both(self, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward."""
        with tf.GradientTape() as tape:
            inputs = [c for c in Arguments(args, kwargs).components() if c.dtype.is_floating]
            tape.watch(inputs)
            results = tf.nest.flatten(self(*args, **kwargs), expand_composites=True)
            smooth = [y for y in results if is_tensor(y) and y.dtype.is_floating]
        return results, tape.gradient(smooth, [*inputs, *tape.watched_variables()]) if smooth else []

    def _check(self, report: Placement) -> None:
        stray = []
        for row in report.ops:
            replica = re.search(r"(?:^|/)replica_(\d+)_on_", row.name)
            if replica and row.actual != self.devices[int(replica[1])]:
                stray.append(f"  {row.name} ({row.op}, {row.phase}) ran on {short(row.actual)}")
        if stray:
            raise PlacementError(
                "\n".join([f"{self._where}: ops ran elsewhere than on their replica's device:", *stray])
            )

    def _compile(self, arguments: Arguments) -> tuple[Any, Traced]:
        """All replicas in one graph, so that TensorFlow's executor overlaps them."""
        specs = arguments.specs()
        built: list[Traced] = []

        def every_replica(*components: Any) -> list[Any]:
            traced, leaves = self._replicas(arguments.with_components(components))
            built.append(traced)
            return [leaf for leaf in leaves if is_tensor(leaf)]

        function = concrete(every_replica, *specs)
        return function, built[-1]

    def _timed(self, concrete: Any, arguments: Arguments, *, counts: bool) -> Any:
        """A call; while nobody knows whether XLA is faster, its time counts, if it `counts`."""
        if not (counts and self._compilation.undecided):
            return concrete(*arguments.components())
        start = time.perf_counter()
        results = concrete(*arguments.components())
        tf.test.experimental.sync_devices()
        self._compilation.note(arguments.size(self._where) or 0, 1, time.perf_counter() - start)
        return results

    def _build(self, arguments: Arguments) -> Any:
        """In a graph of the user's, of which no call is seen."""
        traced, leaves = self._replicas(arguments, compiled=not self._compilation.undecided)
        return traced.pack(leaves)

    def _replicas(self, arguments: Arguments, *, compiled: bool = True) -> tuple[Traced, list[Any]]:
        """Run every replica; the leaves of the joined result, and a trace that knows their structure.

        Without `compiled`, XLA is left out whatever was asked for.
        """
        total = arguments.size(self._where)
        counts = arguments.counts(len(self.devices)) if total is None else sizes(total, len(self.devices))
        parts = arguments.parts(counts)
        traces = [self._trace(part, i, len(parts)) for i, part in enumerate(parts)]
        if compiled and self._compilation.on:
            self._check_compiling(traces, parts, counts)
        call = self._call_compiled if compiled and self._compilation.on else self._call
        results = [call(i, *each) for i, each in enumerate(zip(traces, parts, strict=True))]
        paths = [path for path, _ in traces[0].paths()]
        follows = self.follows(parts[0], traces[0], counts)
        leaves = [
            join_leaf(path, replicas, self.devices[: len(parts)], counts, self._join, follow, self._where)
            for path, replicas, follow in zip(paths, zip(*results, strict=True), follows, strict=True)
        ]
        return traces[0], leaves

    def _call(self, replica: int, traced: Traced, part: Arguments) -> list[Any]:
        return traced.on(self.devices[replica], part.components(), replica=replica)

    def _call_compiled(self, replica: int, traced: Traced, part: Arguments) -> list[Any]:
        key = (traced, self.devices[replica])
        if key not in self._with_xla:
            self._with_xla[key] = CompiledReplica(*key)
        return self._with_xla[key](part.components(), replica)

    def _check_compiling(
        self, traces: Sequence[Traced], parts: Sequence[Arguments], counts: Sequence[Any]
    ) -> None:
        """Refuse what XLA cannot compile, where that was asked for; else go on without it."""
        with tf.init_scope():
            amiss = next(filter(None, (list(immovable(traced)) for traced in traces)), [])
            known = [count if isinstance(count, int) else 1 for count in counts]
            like = [with_zeros(part.resized(rows)) for part, rows in zip(parts, known, strict=True)]
            amiss = amiss or uncompilable(traces, like)
        if amiss and self._compilation.undecided:
            self._compilation.decline(amiss[0].rule)
        else:
            self._compilation.refuse(amiss)

    def _trace(self, part: Arguments, replica: int, num_replicas: int) -> Traced:
        """One trace for all replicas whose slices have the same shape, or one each where it must be."""
        common = self._traces.get(part)
        if num_replicas == 1:
            return common
        check(self._where, refusals(common))
        return self._traces.voiced(common, part, replica)

    def _traced(self, part: Arguments, voice: Voice | None) -> Traced:
        # A tf.function would keep the numbers and the words of the replica that it was traced for first.
        fn = getattr(self._fn, "python_function", self._fn) if voice else self._fn
        return Traced(fn, part, voice)

    def follows(self, part: Arguments, traced: Traced, counts: Sequence[Any]) -> list[bool]:
        """Which outputs have a batch dim: their first dim changes with the size of the slice.

        A slice of another size tells a batch dim, also one that was flattened or filtered, from a dim
        that has the same size by chance. That costs a trace, once for batches of a kind, unless the graph
        of this one tells too.
        """
        leaves = [leaf for _, leaf in traced.paths()]
        # Rows of a table, which a sparse gradient has, are no examples.
        ranked = [
            is_tensor(leaf) and not isinstance(leaf, tf.IndexedSlices) and leaf.shape.rank != 0
            for leaf in leaves
        ]
        rows = counts[0] if isinstance(counts[0], int) else None
        size = rows or 2
        # Twice the size: a function that takes groups of rows takes that too.
        others = _with_rows(traced, part, 2 * size)
        if all(
            not has_rank or _first(leaf) is None or other not in (None, _first(leaf))
            for has_rank, leaf, other in zip(ranked, leaves, others, strict=True)
        ):
            return ranked
        kind = kind_of(part), tuple(path for path, _ in traced.paths())
        if kind not in self._follow:
            one, other = (self._traces.get(part.resized(rows)).paths() for rows in (size, 2 * size))
            self._follow[kind] = [
                has_rank and (_first(a) is None or _first(a) != _first(b))
                for has_rank, (_, a), (_, b) in zip(ranked, one, other, strict=True)
            ]
        return self._follow[kind]

    def _explained(self, error: tf.errors.OpError, arguments: Arguments) -> tf.errors.OpError:
        """The same error in a few lines: what, on which device, and by which line of the user's."""
        roots = re.findall(r"\(\d+\) +[A-Z_]+: +(.*)", error.message) or [
            error.message.strip().split("\n")[-1]
        ]
        what = re.sub(r"\{\{[^}]*\}\}\s*", "", roots[0]).strip()
        named = dict.fromkeys(re.findall(r"\{\{node ([^}]+)\}\}", error.message))
        lines = [line for node in named for traced in self.traces if (line := traced.line_of(node))]
        device = self._guilty(error, arguments)
        where = f"on {short(device)}" if device else "on one of the devices"
        said = [
            f"{where}: {what}",
            *(f"  at {line}" for line in lines[:1]),
            *(f"  in op {node}" for node in named),
        ]
        return type(error)(error.node_def, error.op, "\n".join(said))

    def _guilty(self, error: tf.errors.OpError, arguments: Arguments) -> str | None:
        """The device whose replica raised: the one whose slice raises again by itself.

        TensorFlow's message does not tell, because all replicas run the same function. One that
        changes variables is not run again; where it speaks, its own trace bears the device's name.
        """
        counts = sizes(arguments.size(self._where) or 0, len(self.devices))
        for i, part in enumerate(arguments.parts(counts)):
            traced = self._trace(part, i, len(counts))
            if f"{{{{node replica_{i}_on_" in error.message:
                return self.devices[i]
            if traced.written or traced.facts.speaks:
                continue
            try:
                traced.on(self.devices[i], part.components(), replica=i)
            except type(error):
                return self.devices[i]
        return None


def parallel(
    fn: Callable[..., Any] | None = None,
    *,
    devices: Devices = None,
    join: str = "concat",
    compile: bool | str = False,
) -> Any:
    """Make a function, a Keras model or a layer run on several devices; also as a decorator.

    Every tensor among the arguments is split on its first dim; Python values, 0-d tensors and
    `cn.broadcast(x)` pass whole. Variables are shared. The backward pass of each slice runs on the
    device of its forward pass.

    Args:
        fn: the function, written for one device.
        devices: how many devices, or which; all by default.
        join: what becomes of outputs without a batch dim, such as a scalar loss: `mean` (weighted by
            the size of each slice), `sum` or `stack`. By default such an output is an error.
        compile: True lets XLA compile what a replica computes; `auto` tries both ways on the first calls
            and keeps the faster one. `compiled` of what is returned says what became of it.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> @cn.parallel(devices=2, join="mean")
        ... def loss(x):
        ...     return tf.reduce_mean(x)
        >>> float(loss(tf.constant([1.0, 2.0, 6.0])))
        3.0
    """
    check_join(join, "parallel()")
    check("parallel()", compile_problems(compile))
    if fn is None:
        return functools.partial(parallel, devices=devices, join=join, compile=compile)
    if not callable(fn):
        raise InvalidArgument(
            "parallel()", [Problem("fn", fn, "must be a function", "Pass what you would call")]
        )
    return Parallel(fn, hardware.resolve(devices, "parallel()"), join, compile)


@tf.autograph.experimental.do_not_convert
def make_parallel(fn: Callable[..., Any], num_gpus: int | Sequence[int | str], /, **tensors: Any) -> Any:
    """Split each of `tensors` on its first dim, run `fn` on each device, concatenate the results.

    Args:
        fn: a function of TensorFlow code, or a Keras model; variables are shared.
        num_gpus: how many devices, or which.
        **tensors: what `fn` is called with.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> cn.make_parallel(lambda a, b: a + b, 2, a=tf.ones(4), b=tf.ones(4)).numpy().tolist()
        [2.0, 2.0, 2.0, 2.0]
    """
    check(
        "make_parallel()",
        [] if callable(fn) else [Problem("fn", fn, "must be a function", "Pass what you would call")],
    )
    if not isinstance(fn, Hashable):
        rule = "cannot be hashed, so its traces could not be kept from call to call"
        fix = "Make fast = cn.parallel(fn) once, and call that"
        raise InvalidArgument("make_parallel()", [Problem("fn", type(fn).__name__, rule, fix)])
    return _made(fn, hardware.resolve(num_gpus, "make_parallel()", "num_gpus"))(**tensors)


# A program calls make_parallel with the same function at every step: its traces are kept.
@functools.lru_cache(maxsize=64)
def _made(fn: Callable[..., Any], devices: tuple[str, ...]) -> Parallel:
    return Parallel(fn, devices, "concat")


def _seed() -> int:
    """The global seed of legacy random ops, which becomes part of a trace."""
    return tf.compat.v1.get_seed(0)[0]


def _with_rows(traced: Traced, part: Arguments, rows: int) -> list[int | None]:
    """The first dim of each leaf of the result for a slice of so many rows, as far as the graph tells."""
    leaves = traced.leaves(traced.outputs)
    plain = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    names = [tensor.op.name for tensor in traced.concrete.inputs]
    given = [component.shape for component in part.resized(rows).components()]
    try:
        shapes = iter(shapes_from(plain, dict(zip(names, given, strict=False))) if plain else [])
    except ValueError:  # it is made for slices of its own size
        return [None for _ in leaves]
    return [_first(tf.TensorSpec(next(shapes))) if isinstance(leaf, tf.Tensor) else None for leaf in leaves]


def _first(leaf: Any) -> int | None:
    return leaf.shape[0] if leaf.shape.rank else None
