"""Where a part lies in its whole variable, so that a checkpoint saves the parts as one tensor.

TensorFlow's checkpoint format knows slices of a tensor: what was written in four of them is read in three.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import tensorflow as tf

MARK = "colonnade_slice"
PART = re.compile(r"_part_\d+")
# Between the name of a tensor and the slice of it; no variable has it in its name.
BAR = "|"


@dataclass(frozen=True)
class Slice:
    """A part of a variable."""

    logical: Any  # the same object for all parts of a variable
    axis: int
    start: int
    shape: tuple[int, ...]  # of the whole

    def of(self, shape: Sequence[int]) -> str:
        """The slice in TensorFlow's notation: the shape of the whole, then start and length along each axis.

        >>> Slice(None, 1, 3, (4, 11)).of((4, 5))
        '4 11 0,4:3,5'
        """
        starts = [self.start if axis == self.axis else 0 for axis in range(len(shape))]
        lengths = ":".join(f"{start},{length}" for start, length in zip(starts, shape, strict=True))
        return f"{' '.join(map(str, self.shape))} {lengths}"


def mark(parts: Sequence[tf.Variable], axis: int) -> None:
    """Note of variables that they are consecutive parts of one."""
    ends = list(accumulate(part.shape[axis] for part in parts))
    whole = list(parts[0].shape)
    whole[axis] = ends[-1]
    for part, end in zip(parts, ends, strict=True):
        setattr(part, MARK, Slice(parts[0].ref(), axis, end - part.shape[axis], tuple(whole)))


def slice_of(variable: tf.Variable) -> Slice | None:
    return getattr(variable, MARK, None)


def mark_slots(parameters: Iterable[tf.Variable], slots: Iterable[tf.Variable]) -> None:
    """An optimizer's variables for a part are parts too, if they have its shape.

    Keras names them after their parameters; of several with one name, the first belongs to the first.
    """
    parameters = list(parameters)
    if not any(map(slice_of, parameters)):
        return
    owners: dict[str, list[tf.Variable]] = {}
    for parameter in parameters:
        # The path of a Keras variable, or the name of another, which ends with `:0`.
        for name in (parameter.name.partition(":")[0], parameter.name):
            owners.setdefault(f"{re.sub('[/:]', '_', name)}_", []).append(parameter)
    names = sorted(owners, key=len, reverse=True)
    counts: dict[str, int] = {}
    for slot in slots:
        number = counts[slot.name] = counts.get(slot.name, -1) + 1
        last = slot.name.rpartition("/")[2]
        of = next((owners[name] for name in names if last.startswith(name)), [])
        cut = slice_of(of[number]) if number < len(of) else None
        if cut is not None and slot.shape == of[number].shape:
            setattr(slot, MARK, cut)
