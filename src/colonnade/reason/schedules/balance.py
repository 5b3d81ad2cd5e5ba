"""Deals layers out to many stages so that the slowest is as fast as can be.

A stage takes as many layers as a limit of time and its memory allow, then the next one goes on; the
smallest limit under which all layers find a place is found by halving, down to the last digits of a float. It
is as good as the search in `reason.schedules.layer_split`, which tries all cuts.

Where stages are on devices of different speed or size, taking as much as possible is not always best. Then
the best cut of the first layers over the first stages is found for every number of both, one by one.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

# Times that differ by less than this part are the same.
LAST_DIGITS = 1e-12


def balanced(
    seconds: Sequence[float],
    kept: Sequence[float],
    activations: Sequence[float],
    alive: Sequence[float],
    limit: float | None,
) -> tuple[int, ...] | None:
    """The stage of every layer, or None where no cut fits the memory.

    Args:
        seconds: of each layer for a micro-batch, there and back.
        kept: bytes of each layer that stay: parameters, gradients, slots.
        activations: bytes of each layer that a micro-batch leaves.
        alive: for each stage, how many micro-batches it keeps at most.
        limit: bytes of a device; None without one.

    >>> balanced([1.0, 1.0, 4.0, 2.0], [0] * 4, [0] * 4, [1, 1, 1], None)
    (0, 0, 1, 2)
    """
    time, held, active = ([0.0, *accumulate(each)] for each in (seconds, kept, activations))
    best = _filled(time, held, active, alive, limit, time[-1])
    if best is None:
        return None  # however long a stage may take
    low, high = 0.0, _slowest(time, best)
    while high - low > LAST_DIGITS * high:
        middle = (low + high) / 2
        stages = _filled(time, held, active, alive, limit, middle)
        if stages is None:
            low = middle
        else:
            best, high = stages, _slowest(time, stages)
    return best


def _slowest(time: Sequence[float], stages: Sequence[int]) -> float:
    ends = [i for i in range(1, len(stages)) if stages[i] != stages[i - 1]]
    return max(time[end] - time[begin] for begin, end in pairwise([0, *ends, len(stages)]))


def _filled(
    time: Sequence[float],
    held: Sequence[float],
    active: Sequence[float],
    alive: Sequence[float],
    limit: float | None,
    most: float,
) -> tuple[int, ...] | None:
    """Every stage as full as it can be, if no stage takes longer than `most`."""
    count, at = len(time) - 1, 0
    stages: list[int] = []
    for k, number in enumerate(alive):
        last = count - (len(alive) - 1 - k)  # each of the stages behind it needs a layer
        end = at
        while end < last and time[end + 1] - time[at] <= most:
            needs = held[end + 1] - held[at] + number * (active[end + 1] - active[at])
            if limit is not None and needs > limit:
                break
            end += 1
        if end == at:
            return None
        stages += [k] * (end - at)
        at = end
    return tuple(stages) if at == count else None


def balanced_unequal(
    seconds: Sequence[Sequence[float]],
    kept: Sequence[float],
    activations: Sequence[float],
    alive: Sequence[float],
    limits: Sequence[float | None],
) -> tuple[int, ...] | None:
    """The same where devices differ: seconds of each layer for each stage, and the bytes of its device.

    >>> balanced_unequal([[2.0] * 4, [1.0] * 4], [0] * 4, [0] * 4, [1, 1], [None, None])
    (0, 1, 1, 1)
    """
    count, num_stages = len(kept), len(seconds)
    held, active = (np.array([0.0, *accumulate(each)]) for each in (kept, activations))
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    cuts = np.zeros((num_stages, count + 1), int)
    upward = (
        np.arange(count + 1)[:, None] < np.arange(count + 1)[None, :]
    )  # from layer i up to before layer j
    for k, (own, number, limit) in enumerate(zip(seconds, alive, limits, strict=True)):
        time = np.array([0.0, *accumulate(own)])
        took = np.where(upward, time[None, :] - time[:, None], np.inf)
        if limit is not None:
            needs = held[None, :] - held[:, None] + number * (active[None, :] - active[:, None])
            took = np.where(needs > limit, np.inf, took)
        slowest = np.maximum(best[:, None], took)
        cuts[k] = slowest.argmin(axis=0)
        best = slowest.min(axis=0)
    if not np.isfinite(best[count]):
        return None
    stages: list[int] = []
    end = count
    for k in reversed(range(num_stages)):
        begin = int(cuts[k][end])
        stages = [k] * (end - begin) + stages
        end = begin
    return tuple(stages)
