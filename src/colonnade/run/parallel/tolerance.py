"""How much a result may differ: what rounding does to it on one device alone, which is found out there.

Inputs and variables are moved by the last digit of their floats, and what that does to a result is rounding.
A sum over the batch may also be added in another order, which permuting the batch shows.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import count

import numpy as np

from colonnade.run.parallel.gap import gap, largest

Values = dict[str, np.ndarray]

# A difference up to this many times what one device does to itself is rounding. On convolutions, attention
# and recurrent layers the largest quotient seen was 2.3, with and without oneDNN.
MARGIN = 4.0
# Kernels for other sizes may keep more digits between the ops than halves have.
MARGIN_OF_HALVES = 32.0
HALVES = 2.0**-10
# A gradient that cancels keeps the rounding of the largest one of its kind, up to so many of its steps.
CANCELLED = 32.0
# Between a name and its number, where several variables have the same name.
AGAIN = " #"
# How often the last digits are moved, and at random: up or down.
MOVES = 3


def margin(step: float) -> float:
    """How many times the rounding of one device is allowed; `step` is that of the floats of a result."""
    return MARGIN_OF_HALVES if step >= HALVES else MARGIN


def scales(reference: Values) -> dict[str, float]:
    """The largest number among the results of each kind."""
    kinds = {kind(leaf): 0.0 for leaf in reference}
    for leaf, expected in reference.items():
        kinds[kind(leaf)] = max(kinds[kind(leaf)], largest(expected))
    return kinds


def noise(
    leaf: str,
    expected: np.ndarray,
    of_kind: float,
    step: float,
    moved: Sequence[Mapping[str, np.ndarray]],
    orders: Sequence[Mapping[str, np.ndarray]] = (),
    rows: int = 1,
) -> float:
    """What rounding does to a result on one device; what is more than rounding is not counted.

    Args:
        leaf: the name of the result.
        expected: the result.
        of_kind: the largest number among results of its kind, as `scales` gives it.
        step: the relative step of the floats behind it.
        moved: all results with the last digits moved.
        orders: of a sum over the batch, all results with other orders of the examples.
        rows: how many examples there are.
    """
    scale, ceiling = largest(expected), most_noise(expected, of_kind, step)
    responses = [gap(expected, other.get(leaf)) for other in moved]
    seen = max([step * scale, *(d for d in responses if d <= ceiling)])
    if not orders:
        return seen
    # The rounding of a sum grows with the root of how many are added.
    return max(seen, min(seen * np.sqrt(rows), max(gap(expected, other.get(leaf)) for other in orders)))


def most_noise(expected: np.ndarray, of_kind: float, step: float, rows: int = 1) -> float:
    """The most that rounding is believed to do to a result that is a sum over so many examples."""
    return float(max(np.sqrt(step) * largest(expected), CANCELLED * step * of_kind) * np.sqrt(rows))


def kind(leaf: str) -> str:
    """The first word of a name: output, gradient, metric."""
    return leaf.split()[0]


def unlike(taken: Container[str], name: str) -> str:
    """A name that is not taken: two variables may have the same."""
    numbered = (name if i == 1 else f"{name}{AGAIN}{i}" for i in count(1))
    return next(other for other in numbered if other not in taken)
