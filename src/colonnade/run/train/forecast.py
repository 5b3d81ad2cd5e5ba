"""Compares a fit with what was predicted, and says in a line where the largest part of a difference lies."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from colonnade.describe.plan import Plan, Prediction
from colonnade.describe.plan_text import duration
from colonnade.run.engine.history import History

# A step that takes longer or shorter than predicted by more than this part is told of.
QUARTER = 0.25
# Batches that are fetched to see what the input takes.
BATCHES = 4


def compare(plan: Plan, history: History, engine: Any, latest: float, dataset: Any, *, show: bool) -> None:
    """Keep the prediction with the history, and say in one line when steps took another time.

    `latest` are the seconds of a step in the last call; `dataset` can be gone through again, or is None.
    """
    predicted = history.predicted = plan.predicted
    # A plan is for one size of batch; steps on others are not comparable.
    comparable = history.losses and history.examples == plan.batch * len(history.losses)
    if predicted is None or not comparable or difference(predicted, history.seconds_per_step, {}) is None:
        return
    shares = getattr(engine, "shares", None)
    speeds = list(shares.speeds) if shares is not None and shares.timed else []
    contributions = {
        "input": 0.0 if dataset is None else input_seconds(dataset),
        "one slow device": slow_device(speeds, predicted.compute),
        "the reduction": predicted.reduction,
        "tracing and the first call": history.seconds_per_step - latest,
    }
    line = difference(predicted, history.seconds_per_step, contributions)
    if show:
        print(line, file=sys.stderr)


def difference(predicted: Prediction, seconds: float, contributions: dict[str, float]) -> str | None:
    """A line, where a step took another time than predicted by more than a quarter; else None.

    `contributions` are the seconds of a step that the prediction does not have, by what they went into.

    >>> from colonnade.describe.plan import Prediction
    >>> expected = Prediction(0.01, 100.0, 1.0, 0, 0, 0)
    >>> difference(expected, 0.02, {"input": 0.008, "reduction": 0.001})
    'a step took 20 ms, 2 times the 10 ms that were predicted; most of the difference is input (8 ms a step)'
    >>> difference(expected, 0.011, {}) is None
    True
    """
    if predicted.step <= 0 or seconds <= 0 or abs(seconds / predicted.step - 1) <= QUARTER:
        return None
    ratio = seconds / predicted.step
    expected = duration(predicted.step)
    line = f"a step took {duration(seconds)}, {ratio:.2g} times the {expected} that were predicted"
    known = {name: took for name, took in contributions.items() if took > 0}
    if ratio < 1 or not known:
        return line
    most = max(known, key=lambda name: known[name])
    return f"{line}; most of the difference is {most} ({duration(known[most])} a step)"


def input_seconds(dataset: Any) -> float:
    """Seconds that a batch takes to come from a dataset; the first one, which starts it, is not counted."""
    batches = iter(dataset)
    if next(batches, None) is None:
        return 0.0
    start, count = time.perf_counter(), 0
    for _ in range(BATCHES):
        if next(batches, None) is None:
            break
        count += 1
    return (time.perf_counter() - start) / count if count else 0.0


def slow_device(speeds: Sequence[float], compute: float) -> float:
    """Seconds by which the slowest device makes a step longer than the mean one would.

    >>> slow_device([1.0, 1.0, 0.5], 0.3)
    0.2
    """
    known = [speed for speed in speeds if speed > 0]
    if not known:
        return 0.0
    mean = sum(known) / len(known)
    return round(max(0.0, compute * (mean / min(known) - 1)), 9)
