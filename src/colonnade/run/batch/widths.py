"""Dims other than the first that vary from batch to batch, as texts do that are padded to their longest.

A trace for every width would take longer than the training. So the first width has a trace that knows it, and
from the second one on there is one trace for all, which does not know that dim (as `tf.function` has it with
`reduce_retracing=True`).
"""

from collections.abc import Hashable

import tensorflow as tf

from colonnade.run.batch.split import TENSORS, Arguments


class Widths:
    """Remembers the dims of batches, and opens those that were seen to vary, or are said to."""

    def __init__(self) -> None:
        self._first: dict[Hashable, list[tuple[int | None, ...]]] = {}  # shapes, by the kind of a batch
        self._open: dict[Hashable, list[set[int]]] = {}
        self._said: dict[str, set[int]] = {}  # by the path of a leaf

    def expect(self, spec: Arguments) -> None:
        """Be told what a dataset knows of its batches: dims that it does not know are open from the start."""
        for leaf in spec.leaves:
            if isinstance(leaf.value, tf.TensorSpec) and leaf.value.shape.rank is not None:
                known = enumerate(leaf.value.shape)
                self._said[leaf.path] = {i for i, size in known if i and size is None}

    def opened(self, batch: Arguments) -> Arguments:
        """The batch, with all dims open that vary by now; of ragged and sparse tensors they are anyway."""
        shapes, kind = _shapes(batch), kind_of(batch)
        ranks = [range(1, len(shape)) for shape in shapes]
        first = self._first.setdefault(kind, shapes)
        said = [self._said.get(leaf.path, set()) for leaf in batch.leaves]
        opened = self._open.setdefault(kind, [set(dims) for dims in said])
        for dims, rank, shape, before in zip(opened, ranks, shapes, first, strict=True):
            dims.update(i for i in rank if shape[i] != before[i])
        return batch.opened([tuple(sorted(dims)) for dims in opened]) if any(opened) else batch


def kind_of(batch: Arguments) -> Hashable:
    """Equal for batches of one structure, whatever their dims."""
    return batch.opened([tuple(range(1, len(shape))) for shape in _shapes(batch)]).resized(1).key()


def _shapes(batch: Arguments) -> list[tuple[int | None, ...]]:
    """Of plain tensors; of all else there is none."""
    plain = [leaf.role in TENSORS and isinstance(leaf.value, tf.Tensor) for leaf in batch.leaves]
    pairs = zip(batch.leaves, plain, strict=True)
    return [tuple(leaf.value.shape) if is_plain else () for leaf, is_plain in pairs]
