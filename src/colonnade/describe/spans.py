"""Stretches of time, as pairs of a start and an end: which of them are covered, and what is left of them."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def merged(spans: Iterable[Span]) -> list[Span]:
    """The times in which at least one of some spans ran, in order.

    >>> merged([(2, 3), (0, 1), (0.5, 2)])
    [(0, 3)]
    """
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """What is left of ordered spans when others, ordered too, are cut out.

    >>> without([(0, 10)], [(1, 2), (9, 12)])
    [(0, 1), (2, 9)]
    """
    left = []
    first = 0
    for start, end in spans:
        while first < len(taken) and taken[first][1] <= start:
            first += 1
        at = first
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > start:
                left.append((start, taken[at][0]))
            start = max(start, taken[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def common(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What two lists of ordered spans have in common.

    >>> common([(0, 4), (6, 9)], [(3, 7)])
    [(3, 4), (6, 7)]
    """
    return without(spans, without(spans, others))


def length(spans: Iterable[Span]) -> float:
    """Seconds of spans that do not overlap."""
    return sum(end - start for start, end in spans)
