"""What the layers of a pipeline cost on this machine: measured, so that stages can be balanced."""

import time
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from colonnade.reason.placement import Layer
from colonnade.run.layers import Chain, Network
from colonnade.run.residence import Residence
from colonnade.run.split import Arguments
from colonnade.run.trace import Traced

# Of so many runs of a layer the fastest counts.
REPEATS = 3


def measured(
    layers: Chain | Network, values: dict[Hashable, Any], training: bool | None, device: str
) -> list[Layer]:
    """Time for forward and backward of every layer, one after the other, on inputs like `values`.

    The inputs are zeros. Variables are read where they are; what a layer changes, it changes in a copy.
    """
    with tf.init_scope():
        known = tf.nest.map_structure(_zeros, values, expand_composites=True)
        found = []
        for i, name in enumerate(layers.names):
            stage = layers.stage(i, i + 1)
            taken = Arguments(([known[key] for key in stage.takes],), {})

            def both(values, call=stage.call):  # type: ignore[no-untyped-def]
                with tf.GradientTape() as tape:
                    smooth = [v for v in tf.nest.flatten(values) if v.dtype.is_floating]
                    tape.watch(smooth)
                    results = call(values, training)
                    ends = [t for t in tf.nest.flatten(results) if t.dtype.is_floating]
                return results, tape.gradient(ends, [*smooth, *tape.watched_variables()]) if ends else []

            traced = Traced(both, taken)
            seconds, results = _timed(traced, taken, device)
            known.update(zip(stage.gives, results, strict=True))
            found.append(Layer(name, seconds))
    return found


def _timed(traced: Traced, taken: Arguments, device: str) -> tuple[float, Sequence[Any]]:
    handles = Residence("shared", [device], [], []).bindings(0, traced.captures)
    times = []
    for _ in range(1 + REPEATS):
        begin = time.perf_counter()
        leaves = traced.on(device, taken.components(), handles)
        for leaf in leaves:
            if isinstance(leaf, tf.Tensor):
                leaf.numpy()  # on a card, only what has arrived here has been computed
        times.append(time.perf_counter() - begin)
    results, _ = traced.pack(leaves)
    return min(times[1:]), results


def _zeros(value: Any) -> Any:
    if not tf.is_tensor(value):
        return value
    return tf.zeros([size or 1 for size in value.shape], value.dtype)
