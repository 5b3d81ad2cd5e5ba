"""Traces a user's function once; calls the trace on any device, with shared or other variables.

The captures of a trace are the handles of the variables that it uses. So the one concrete function
that came from the user's code serves every device; and where a device has variables of its own, it is
called with the handles of those instead (`variables=`).
"""

import linecache
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from colonnade.errors import ColonnadeError, InvalidArgument, Problem, check
from colonnade.hardware.placement import short
from colonnade.run.batch.split import Arguments, flatten, is_tensor, pack
from colonnade.run.move.seed_places import seeds_on_host
from colonnade.run.trace.captures import Capture
from colonnade.run.trace.concrete import unconverted, undisturbed
from colonnade.run.trace.ops import GraphFacts, has_seed, is_users
from colonnade.run.trace.raw_call import raw_call
from colonnade.run.trace.replica_context import TracingContext

# Graph seeds of the replicas lie this far apart, so that they do not meet the seeds of the user's ops.
SEED_STRIDE = 1_000_003
# There is one tf.print for all threads: one trace at a time may exchange it.
_PRINTING = threading.RLock()


def scope(replica: int, device: str) -> str:
    """The name scope of a replica: it tells the device in TensorFlow's own messages and in summaries."""
    return f"replica_{replica}_on_{short(device).replace(':', '_').replace('/', '_')}"


@dataclass(frozen=True)
class Voice:
    """What makes a trace that of one replica: its own random numbers, its device's name in what it says."""

    replica: int
    device: str
    reseed: bool

    def of(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` as this replica runs it. Replica 0 draws what one device draws."""
        name = scope(self.replica, self.device)
        reseed = unconverted(self._reseed)

        def voiced(*components: Any) -> Any:
            reseed()
            with tf.name_scope(name):
                return fn(*components)

        return voiced

    def _reseed(self) -> None:
        if self.reseed and self.replica:
            tf.compat.v1.set_random_seed(self._seed())

    def _seed(self) -> int:
        base, _ = tf.compat.v1.get_seed(0)
        return (base + self.replica * SEED_STRIDE) % 2**31

    def refuse_others_numbers(self, graph: Any, where: str) -> None:
        """Refuse a trace of this replica that holds a function with the seed of another.

        A tf.function that was called before is not traced again, and keeps the seed it had then.
        """
        if not (self.reseed and self.replica):
            return
        seed = self._seed()
        kept = [f for f in graph.library.function if any(has_seed(n, not_of=seed) for n in f.node_def)]
        rule = "was called before: it keeps its seed, and would draw the same numbers on every device"
        fix = "Call the plain function; there is no need for a tf.function inside"
        names = [re.sub(r"^__[a-z]+_(.*)_\d+$", r"\1", f.signature.name) for f in kept]
        check(where, [Problem("tf.function", name, rule, fix) for name in names])

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """While the trace is made, let tf.print begin with the device's name."""
        with _PRINTING:
            original, tracing, label = tf.print, threading.get_ident(), f"[{short(self.device)}]"

            @tf.autograph.experimental.do_not_convert
            def named(*inputs: Any, **options: Any) -> Any:
                return original(*((label,) if threading.get_ident() == tracing else ()), *inputs, **options)

            tf.print = named
            try:
                yield
            finally:
                tf.print = original


class Traced:
    """A concrete function over plain tensors; made by `trace`."""

    def __init__(self, fn: Callable[..., Any], arguments: Arguments, voice: "Voice | None" = None) -> None:
        outputs: list[Any] = []
        self._mistakes: list[ColonnadeError] = []
        self._context = TracingContext(self._mistakes)
        specs = [tf.TensorSpec(c.shape, c.dtype) for c in arguments.components()]
        flat = self._flat(fn, arguments, outputs)
        with undisturbed(), voice.speaking() if voice else nullcontext():
            function = tf.function(voice.of(flat) if voice else flat)
            try:
                self.concrete = function.get_concrete_function(*specs)
            except Exception as error:
                # AutoGraph dresses up errors of types that it does not know; a mistake that Colonnade
                # itself found is told as it is, without the frames of the tracing.
                if self._mistakes:
                    raise self._mistakes[-1].with_traceback(None) from None
                raise error
        self.structure, self._structured = outputs[-1], self.concrete.structured_outputs
        # Of this trace also where another graph was made of it.
        self.traced_in = self.concrete.graph
        # Differentiating the function adds outputs to its graph, so these are noted now.
        self.outputs = list(self.concrete.outputs)
        self.facts = GraphFacts(self.concrete)
        self.captures = self.facts.captures
        of_variables = [capture for capture in self.captures if capture.variable is not None]
        # The variables that the function uses, trainable or not, and those that it changes.
        self.variables = tuple(capture.variable for capture in of_variables)
        self.written = tuple(capture.variable for capture in of_variables if capture.written)
        # Whether it can be called from any graph: it captured nothing of the one around it.
        self.portable = not any(tf.is_symbolic_tensor(t) for t in self.concrete.captured_inputs)
        # The ops that stand for sums over the replicas.
        self.marks = self._context.marks(self.concrete.graph)
        # Those at which a value goes on to another stage of a pipeline.
        self.stage_marks = self._context.stage_marks
        self._refuse_iterators(fn)
        if voice:
            voice.refuse_others_numbers(self.concrete.graph.as_graph_def(), f"the function {_name(fn)}")

    def _ours(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A part of a trace that is Colonnade's: AutoGraph leaves it alone, its errors are remembered."""

        def guarded(*args: Any) -> Any:
            try:
                return fn(*args)
            except ColonnadeError as mistake:
                self._mistakes.append(mistake)
                raise

        return unconverted(guarded)

    def _flat(self, fn: Callable[..., Any], arguments: Arguments, outputs: list[Any]) -> Callable[..., Any]:
        """`fn` over plain tensors; puts what it returns, as it is structured, into `outputs`.

        AutoGraph gets to see as little as can be, the same in every trace: it takes a twentieth of a second
        for each function that it has not seen before.
        """
        begin, leaves = self._ours(self._begin), self._ours(tensor_leaves)
        placed = self._ours(seeds_on_host)

        def flat(*components: Any) -> Any:
            args, kwargs, around, end = begin(arguments, components)
            with placed(), around:
                result = fn(*args, **kwargs)
            return leaves(end(result), outputs)

        return flat

    def _begin(self, arguments: Arguments, components: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """What to call the function with, what to be in meanwhile, and what to make of its result."""
        args, kwargs = arguments.unpack(components)
        return args, kwargs, self._context, self._ours(lambda result: result)

    def voice(self, replica: int, device: str) -> Voice | None:
        """What a replica needs a trace of its own for: to speak, or to draw numbers of its own."""
        own = self.facts.repeats or self.facts.speaks
        return Voice(replica, device, self.facts.repeats) if own else None

    def paths(self) -> list[tuple[str, Any]]:
        """The leaves of what the function returns, each with its path."""
        return list(flatten(self.structure))

    def pack(self, leaves: Sequence[Any]) -> Any:
        """What the function returns, with other leaves."""
        return pack(self.structure, iter(leaves))

    def on(
        self,
        device: str,
        components: Sequence[Any],
        variables: Mapping[Any, Any] | None = None,
        *,
        replica: int = 0,
        compiled: bool = False,
    ) -> list[Any]:
        """Call the function on `device`; returns the leaves of its result.

        Args:
            device: a device string.
            components: the plain tensors of the arguments, as `Arguments.components` gives them.
            variables: handles to use instead, by the `ref()` of the captured variable. Such a call
                cannot be differentiated from outside. Without it the variables are shared, and the
                gradient runs on `device` too.
            replica: the number of the replica, for the names of its ops.
            compiled: whether XLA compiles it; all its `variables` must be on `device` then.
        """
        name = scope(replica, device)
        if variables is None:
            flat = self._differentiable(device, components, name)
        else:
            given = self.bound(components, variables)
            with tf.device(device), tf.name_scope(name):
                flat = self.compiled(*given) if compiled else self._called(given)
        return self.leaves(flat)

    def _called(self, inputs: Sequence[Any]) -> list[Any]:
        types = [output.dtype for output in self.outputs]
        return raw_call(self.concrete, inputs, types)

    @cached_property
    def compiled(self) -> Any:
        """The function, compiled by XLA: to be called, and not to be an op's `f`, which XLA does not see."""
        call = unconverted(lambda *inputs: self._called(inputs))
        return tf.function(call, autograph=False, jit_compile=True)

    def compile_error(self, components: Sequence[Any]) -> str | None:
        """What XLA says of the function, called with tensors like these; None if it compiles it."""
        handles = [capture.tensor for capture in self.captures]
        whole = tf.function(unconverted(lambda *given: self.compiled(*given, *handles)), jit_compile=True)
        try:
            whole.experimental_get_compiler_ir(*components)(stage="hlo")
        except (tf.errors.OpError, ValueError, TypeError) as error:
            return str(error)
        return None

    def bound(self, components: Sequence[Any], variables: Mapping[Any, Any]) -> list[Any]:
        """All inputs of the concrete function, with other handles for its variables."""
        handles = [
            variables.get(capture.variable.ref(), capture.tensor)
            if capture.variable is not None
            else capture.tensor
            for capture in self.captures
        ]
        return [*components, *handles]

    def leaves(self, flat: Sequence[Any]) -> list[Any]:
        """The leaves of the result, from the outputs of the concrete function."""
        tensors = iter(tf.nest.pack_sequence_as(self._structured, flat, expand_composites=True))
        return [next(tensors) if is_tensor(leaf) else leaf for _, leaf in self.paths()]

    def _differentiable(self, device: str, components: Sequence[Any], name: str) -> list[Any]:
        """The call with a gradient that runs on the same device.

        A concrete function that is called under tf.device and differentiated outside leaves its
        backward call without a device. So the gradient is taken here, by a tape of its own.
        """
        # What the function closes over, such as a tensor computed outside, has a gradient as well.
        closed_over = [c.tensor for c in self.captures if c.variable is None and has_gradient(c.tensor)]
        smooth = [has_gradient(c) for c in (*components, *closed_over)]

        @tf.custom_gradient
        def placed(*inputs: Any) -> Any:
            arguments = inputs[: len(components)]
            sources = [c for c, watched in zip((*arguments, *closed_over), smooth, strict=True) if watched]
            with tf.device(device), tf.name_scope(name), tf.GradientTape(persistent=True) as tape:
                # A user may watch a variable that is not trainable; written ones have no gradient.
                tape.watch([*sources, *self._watchable()])
                results = tf.nest.flatten(self.concrete(*arguments), expand_composites=True)

            def gradient(*upstream: Any, variables: Sequence[tf.Variable] = ()) -> Any:
                pairs = [(y, dy) for y, dy in zip(results, upstream, strict=True) if has_gradient(y)]
                targets, output_gradients = zip(*pairs, strict=True) if pairs else ((), ())
                with tf.device(device), tf.name_scope(f"{name}_grad"):
                    gradients = tape.gradient(
                        list(targets), [*sources, *variables], output_gradients=list(output_gradients)
                    )
                of_inputs = iter(gradients[: len(sources)])
                return [next(of_inputs) if watched else None for watched in smooth], gradients[len(sources) :]

            return results, gradient

        return placed(*components, *closed_over)

    def _watchable(self) -> list[tf.Variable]:
        written = {variable.ref() for variable in self.written}
        fixed = [v for v in self.variables if not v.trainable and v.dtype.is_floating]
        return [variable for variable in fixed if variable.ref() not in written]

    def line_of(self, node: str) -> str | None:
        """The line of the user's code that made a node: `file:line: code`."""
        graph = self.concrete.graph
        names = {op.name for op in graph.get_operations()}
        # A node inside a loop or a branch is found under the name of the loop or branch.
        while node and node not in names:
            node = node.rpartition("/")[0]
        if not node:
            return None
        frames = [frame for frame in graph.get_operation_by_name(node).traceback if is_users(frame.filename)]
        if not frames:
            return None
        file, number = frames[-1].filename, frames[-1].lineno
        return f"{file}:{number}: {linecache.getline(file, number).strip()}"

    def _refuse_iterators(self, fn: Callable[..., Any]) -> None:
        problems = [problem for capture in self.captures for problem in _unusable(capture)]
        if problems:
            raise InvalidArgument(f"the function {_name(fn)}", problems)


def trace(fn: Callable[..., Any], *specs: Any, **keywords: Any) -> Traced:
    """Trace `fn` for arguments like these: tensors, `tf.TensorSpec`s, nests of them, Python values.

    Example:
        >>> w = tf.Variable([2.0])
        >>> traced = trace(lambda x: x * w, tf.TensorSpec([3]))
        >>> [v.name for v in traced.variables], traced.on("/device:CPU:1", [tf.ones(3)])[0].numpy().tolist()
        (['Variable:0'], [2.0, 2.0, 2.0])
    """
    return Traced(fn, Arguments(specs, keywords))


def _unusable(capture: Capture) -> Iterator[Problem]:
    """Captures that several replicas cannot share and that cannot be copied."""
    if any(op.startswith("IteratorGetNext") for op in capture.used_by):
        rule = "is read inside the function; replicas would race for its elements"
        yield Problem("an iterator", capture.tensor.dtype.name, rule, "Pass its elements as an argument")


def has_gradient(tensor: Any) -> bool:
    """Whether its kind has one at all."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def tensor_leaves(result: Any, outputs: list[Any]) -> list[Any]:
    """The tensors in what a function returned, which is itself put into `outputs`."""
    outputs.append(result)
    return [leaf for _, leaf in flatten(result) if is_tensor(leaf)]


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)
