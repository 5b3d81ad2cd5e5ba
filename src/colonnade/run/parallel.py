"""Any function on every device: split the arguments, run a replica per device, join the results."""

import inspect
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import short
from colonnade.run.split import Arguments, sizes
from colonnade.run.trace import Traced


class Parallel:
    """A function that runs on several devices; made by `parallel`."""

    def __init__(self, fn: Callable[..., Any], devices: Sequence[str], join: str) -> None:
        self._fn = fn
        self.devices = tuple(devices)
        self._join = join
        self._names = _parameter_names(fn)
        self._traces: dict[Hashable, Traced] = {}
        self._compiled: dict[Hashable, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(args, kwargs, self._names)
        if not tf.executing_eagerly():
            return self._build(arguments)
        key = arguments.key()
        if key not in self._compiled:
            arguments.size(self._where)
            self._compiled[key] = self._compile(arguments)
        return self._compiled[key](*arguments.components())

    @property
    def _where(self) -> str:
        return f"parallel({getattr(self._fn, '__name__', type(self._fn).__name__)})"

    def _compile(self, arguments: Arguments) -> Callable[..., Any]:
        """All replicas in one graph, so that TensorFlow's executor overlaps them."""
        specs = [tf.TensorSpec(c.shape, c.dtype) for c in arguments.components()]
        build = tf.function(lambda *c: self._build(arguments.with_components(c)), autograph=False)
        return build.get_concrete_function(*specs)

    def _build(self, arguments: Arguments) -> Any:
        total = arguments.size(self._where)
        assert total is not None
        counts = sizes(total, len(self.devices))
        parts = arguments.parts(counts)
        traces = [self._trace(part) for part in parts]
        results = [
            traced.on(device, part.components(), f"replica_{i}_on_{short(device).replace(':', '_')}")
            for i, (traced, part, device) in enumerate(zip(traces, parts, self.devices, strict=False))
        ]
        joined = [
            self._joined(path, leaves)
            for (path, _), leaves in zip(traces[0].paths(), zip(*results, strict=True), strict=True)
        ]
        return traces[0].pack(joined)

    def _trace(self, part: Arguments) -> Traced:
        key = part.key()
        if key in self._traces:
            return self._traces[key]
        traced = Traced(self._fn, part)
        if traced.portable:
            self._traces[key] = traced
        return traced

    def _joined(self, path: str, leaves: Sequence[Any]) -> Any:
        if not isinstance(leaves[0], tf.Tensor):
            return leaves[0]
        if leaves[0].shape.rank == 0:
            rule = "is a scalar, which cannot be concatenated"
            raise InvalidArgument(
                self._where,
                [Problem(f"output{path}", leaves[0].dtype.name, rule, "Return one value per example")],
            )
        return tf.concat(leaves, axis=0) if len(leaves) > 1 else leaves[0]


_made: "weakref.WeakKeyDictionary[Any, dict[tuple[str, ...], Parallel]]" = weakref.WeakKeyDictionary()


def make_parallel(fn: Callable[..., Any], num_gpus: int | Sequence[int | str], /, **tensors: Any) -> Any:
    """Split each of `tensors` on its first dim, run `fn` on each device, concatenate the results.

    Args:
        fn: a function of TensorFlow code, or a Keras model; variables are shared.
        num_gpus: how many devices, or which.
        **tensors: what `fn` is called with.

    Example:
        >>> import colonnade as cn
        >>> cn.make_parallel(lambda a, b: a + b, 2, a=tf.ones(4), b=tf.ones(4)).numpy().tolist()
        [2.0, 2.0, 2.0, 2.0]
    """
    devices = hardware.resolve(num_gpus, "make_parallel()", "num_gpus")
    made = _made.setdefault(fn, {})
    if devices not in made:
        made[devices] = Parallel(fn, devices, "concat")
    return made[devices](**tensors)


def _parameter_names(fn: Callable[..., Any]) -> list[str]:
    """The names of a function's positional parameters, for messages."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some callables of extension modules have no signature
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
