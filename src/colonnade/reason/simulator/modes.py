"""Simulates asynchronous training: devices that read and apply in a race, and how old their gradients are."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from colonnade.describe.timeline import Event
from colonnade.reason.simulator.staleness import Ledger, race

# Slices of each device that are simulated, and of these the first that are left out: the race must settle.
SLICES, WARM = 64, 8
# Slices of each device that a timeline shows.
SHOWN = 5


@dataclass(frozen=True)
class Race:
    """What came of a race."""

    seconds_per_slice: float  # of all devices together
    ages: dict[int, int]
    events: tuple[Event, ...]


def race_of(
    seconds: Sequence[float],
    ways: Sequence[float],
    update: float,
    max_staleness: int | None,
    *,
    forwards: Sequence[float] | None = None,
    pushed: int = 0,
    jitter: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Race:
    """Devices that need so many seconds for a slice each, beside the way of parameters there and gradients
    back.

    Of the seconds for a slice, `forwards` are those of the forward pass; a push has `pushed` bytes.

    >>> race_of([1.0, 2.0], [0.0, 0.0], 0.0, None).ages[1] > 0
    True
    """
    totals = [own + 2 * way + update for own, way in zip(seconds, ways, strict=True)]
    if jitter and rng is not None:
        # A race of given paces: each device has one for all of its slices.
        totals = [
            total * float(pace)
            for total, pace in zip(totals, rng.normal(1.0, jitter, len(totals)), strict=True)
        ]
    count = SLICES * len(totals)
    ledger, now = Ledger(max_staleness), 0.0
    began: dict[int, float] = {}
    ages: Counter[int] = Counter()
    shown: dict[int, list[list[Event]]] = defaultdict(list)
    applied, warm = 0, 0.0
    for kind, device in islice(race(totals, max_staleness), 4 * count):
        if kind == "read":
            began[device] = now
            ledger.read(device)
            continue
        now = max(now, began[device] + totals[device])
        age = ledger.applied(device)
        applied += 1
        if applied == WARM * len(totals):
            warm = now
        if applied > WARM * len(totals):
            ages[age] += 1
        if len(shown[device]) < SHOWN:
            forward = seconds[device] / 3 if forwards is None else forwards[device]
            parts = [ways[device] + forward, seconds[device] - forward, ways[device], update]
            shown[device].append(_slice(device, began[device], now, parts, pushed))
        if applied == count:
            break
    # One update at a time: a variable store that is always busy sets the pace.
    per_slice = max((now - warm) / (count - WARM * len(totals)), update)
    events = [event for slices in shown.values() for one in slices for event in one]
    return Race(per_slice, dict(sorted(ages.items())), tuple(sorted(events, key=lambda e: (e.start, e.end))))


def _slice(device: int, begin: float, end: float, parts: Sequence[float], pushed: int) -> list[Event]:
    """What a device does for a slice, one after the other, in as much time as it has."""
    scale = (end - begin) / sum(parts) if sum(parts) else 0.0
    edges = [begin, *(begin + scale * sum(parts[: i + 1]) for i in range(len(parts)))]
    events = [
        Event(str(device), edges[i], edges[i + 1], kind, replica=device)
        for i, kind in enumerate(("forward", "backward", "reduction", "update"))
    ]
    sent = replace(events[2], bytes=pushed, link=f"{device} -> 0")
    return [event for event in (*events[:2], *([sent] if device else []), events[3]) if event.seconds > 0]
