"""Curves with as many points as a screen can show; no peak and no dip is lost on the way."""

from collections.abc import Sequence

# More than the width of most screens in pixels.
MOST = 2000


def kept(values: Sequence[float | None], most: int = MOST) -> list[int]:
    """Which points of a curve to draw, at most about so many.

    Of every stretch they are the first, the lowest, the highest and the last. A value that is None (not
    finite, or missing) is a gap; a stretch with gaps keeps one.

    >>> chosen = kept([9.0 if i == 500 else 0.0 for i in range(1000)], most=20)
    >>> len(chosen) <= 20, 500 in chosen
    (True, True)
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches = max(1, most // 5)
    chosen: list[int] = []
    for i in range(stretches):
        begin, end = i * count // stretches, (i + 1) * count // stretches
        known = [(value, k) for k, value in enumerate(values[begin:end], begin) if value is not None]
        here = {begin, end - 1}
        if known:
            here |= {min(known)[1], max(known)[1]}
        if len(known) < end - begin:
            here.add(next(k for k in range(begin, end) if values[k] is None))
        chosen += sorted(here)
    return chosen


def kept_together(curves: Sequence[Sequence[float | None]], most: int = MOST) -> list[int]:
    """Which points to draw of curves that are stacked: the same of all, and of each those that matter to it.

    >>> kept_together([[0.0, 1.0], [1.0, 0.0]])
    [0, 1]
    """
    if all(len(values) <= most for values in curves):
        return list(range(max(map(len, curves), default=0)))
    return sorted({i for values in curves for i in kept(values, most // len(curves))})


def extremes(
    low: Sequence[float | None], high: Sequence[float | None], most: int = MOST
) -> tuple[list[int], list[float | None], list[float | None]]:
    """Of every stretch of two curves its middle, the lowest of the one and the highest of the other.

    >>> extremes([0, -1, 0, 0], [5, 6, 7, 9], most=2)
    ([1, 3], [-1, 0], [6, 9])
    """
    count = len(low)
    stretches = min(count, most)
    middles, lows, highs = [], [], []
    for i in range(stretches):
        begin, end = i * count // stretches, (i + 1) * count // stretches
        middles.append(min((begin + end) // 2, end - 1))
        lows.append(min((value for value in low[begin:end] if value is not None), default=None))
        highs.append(max((value for value in high[begin:end] if value is not None), default=None))
    return middles, lows, highs
