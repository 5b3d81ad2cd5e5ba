"""Whether what the layers of a model add to its loss are sums or means, told from a batch and its slices."""

from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.model.whole_batch import AddedLosses, told_kinds
from colonnade.run.prove.proof import InSlices

# Of what the loss function of a Keras model returns beside the loss, where the added losses are.
ADDED = 4


def tell_kinds(added: AddedLosses, look: InSlices) -> bool:
    """Note the kinds that a batch and its slices tell; whether all are told.

    A loss that is 0 tells nothing. One that is multiplied by a variable that is still 0, as a divergence that
    is warmed up, is looked at once more with ones in its place.
    """
    kinds = _told(look, [])
    if None in kinds:
        kinds = [one or other for one, other in zip(kinds, _told(look, _zeros(look)), strict=True)]
    added.kinds |= {call: kind for call, kind in zip(added.calls, kinds, strict=True) if kind is not None}
    return None not in kinds


def guilty(added: AddedLosses, look: InSlices) -> str | None:
    """The name of a layer that adds neither a mean nor a sum."""
    whole, parts = look.outputs()
    slices = zip(*(_added(part) for part in parts), strict=True)
    for layer, value, own in zip(added.layers, _added(whole), slices, strict=False):
        mean = float(np.average(own, weights=look.counts))
        if min(abs(value - mean), abs(value - sum(own))) > 1e-4 * abs(value):
            name: str = layer.name
            return name
    return None


def _told(look: InSlices, raised: list[tf.Variable]) -> list[str | None]:
    whole, parts = look.outputs(raised)
    return told_kinds(_added(whole), [_added(part) for part in parts], look.counts, 1e-6)


def _zeros(look: InSlices) -> list[tf.Variable]:
    """What is read and not trained, and is 0 altogether."""
    trained = {parameter.ref() for parameter in look.whole.parameters}
    read = [v for v in look.whole.variables if v.dtype.is_floating and v.ref() not in trained]
    return [variable for variable in read if not np.any(variable.numpy())]


def _added(outputs: Any) -> list[float]:
    return [float(value) for value in outputs[ADDED]]
