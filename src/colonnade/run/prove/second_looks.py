"""What the first batch does not show by itself: other values that the same program may meet later.

Where all examples of a batch have as many tokens, a quotient of sums is the mean of the slices' quotients;
where a weight is still 0, nothing is seen of what it multiplies; and groups of examples that go together are
whole in slices of some sizes, and cut by others. Each is asked for with the traces that are there.
"""

import re
from collections.abc import Container, Hashable, Iterator, Sequence
from math import gcd
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments, Leaf
from colonnade.run.prove.look import POSITIONS
from colonnade.run.trace.captures import Capture, ancestors
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.aggregation import is_random_state
from colonnade.run.variables.slice_values import bent

# A weight that is smaller shows too little of what it multiplies; what has more numbers is no weight.
SMALL, NUMBERS = 1e-3, 8


def with_gaps(batch: Arguments, counts: Sequence[int]) -> Arguments:
    """The batch with gaps in its first slice, as padding makes them, and in no other one; itself if it has no
    place for them.

    Whole numbers and targets become 0, or the smallest number there if that is below 0, such as -1 for what
    is ignored: of sequences the second half, of other values every second one. Numbers of the first input
    stay as they are: of those, 0 is seldom for what is missing, and for rounding it is a case of its own.
    """
    inputs = _group(batch.leaves[0].path)
    values = [
        _with_gap(leaf, counts[0]) if _may_have_gaps(leaf, inputs) else leaf.value for leaf in batch.leaves
    ]
    if all(value is leaf.value for value, leaf in zip(values, batch.leaves, strict=True)):
        return batch
    return batch.with_values(values)


def _may_have_gaps(leaf: Leaf, inputs: str) -> bool:
    value, number = leaf.value, isinstance(leaf.value, tf.Tensor) and leaf.value.dtype != tf.string
    if not number or leaf.role != "split" or leaf.path == POSITIONS:
        return False
    return not value.dtype.is_floating or _group(leaf.path) != inputs


def _with_gap(leaf: Leaf, rows: int) -> Any:
    value = leaf.value.numpy().copy()
    gap = min(0, value.min(initial=0)) if value.dtype.kind == "i" else 0
    of_slice = value[:rows]
    if value.ndim > 1 and value.shape[1] > 1:
        of_slice[:, value.shape[1] // 2 :] = gap
    else:
        of_slice[::2] = gap
    same = np.array_equal(value, leaf.value.numpy())
    return leaf.value if same else tf.convert_to_tensor(value)


def _group(path: str) -> str:
    """Of a leaf, which of the arguments it is in; a step of a model's own has one, which is a tuple."""
    found = re.match(r"data\[\d+\]|[^\[.]+", path)
    return found[0] if found else path


def at_rest(traced: Traced, ends: Sequence[Any], trained: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Variables that are read on the way to these tensors, are not trained, and are 0 or almost so."""
    known, ops = {v.ref() for v in trained}, {op.name for op in ancestors(*(end.op for end in ends))}
    inputs = traced.concrete.inputs[len(traced.concrete.inputs) - len(traced.captures) :]
    pairs = zip(traced.captures, inputs, strict=True)
    return [c.variable for c, t in pairs if t.op.name in ops and _is_weight(c, known) and _rests(c.variable)]


def _is_weight(capture: Capture, trained: set[Any]) -> bool:
    variable = capture.variable
    if variable is None or variable.ref() in trained or is_random_state(capture):
        return False
    return bool(variable.dtype.is_floating or variable.dtype.is_integer)


def _rests(variable: tf.Variable) -> bool:
    few = (variable.shape.num_elements() or 0) <= NUMBERS
    return bool(few and np.all(np.abs(variable.numpy()) < SMALL))


def bounds_said(traced: Traced, but: Container[Any]) -> Iterator[str]:
    """In words, of what is kept, and `but` for some: where the mean of slices will not do one day."""
    for variable, op in bent(traced, but):
        yield (
            f"what variable {variable.name!r} is given goes through {op} behind a mean over the slice. "
            "Where some slices reach that bound and others do not, the mean that is kept is not what one "
            "device keeps: bound what each example gives, or what reads the variable"
        )


class ProvedSizes:
    """Which sizes of slices a proof was made for, and which ones would show something new."""

    def __init__(self) -> None:
        self._common: dict[Hashable, int] = {}  # by the kind of a batch: what divides all sizes so far
        self._uneven: set[Hashable] = set()

    def shows_more(self, kind: Hashable, counts: Sequence[int]) -> bool:
        """Whether slices of these sizes cut what no slice has cut, or differ in size for the first time.

        Pairs are whole in slices of 4 examples and of 2, but not in slices of 3.
        """
        if len(counts) < 2:
            return False
        common = self._common.get(kind, 0)
        cut = not common or gcd(*counts) % common != 0
        return cut or (len(set(counts)) > 1 and kind not in self._uneven)

    def note(self, kind: Hashable, counts: Sequence[int]) -> None:
        self._common[kind] = gcd(self._common.get(kind, 0), *counts)
        if len(set(counts)) > 1:
            self._uneven.add(kind)
