"""How long a reduction along the engine's order takes: rounds of pairs, messages one behind the other.

Every pair of a round is a link of its own; a message leaves when its sender has all that it adds up, and
when the message before it has left. All pairs of a round are looked at together, so ten thousand devices
take little time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from colonnade.describe.topology import Topology
from colonnade.reason.transfers.reduction import Round


@dataclass(frozen=True)
class Hop:
    """A hop of a reduction: from whom to whom, when, and how many bytes."""

    source: int
    target: int
    start: float
    end: float
    bytes: int


def reduced(
    topology: Topology,
    rounds: Sequence[Round],
    ready: np.ndarray,
    sizes: np.ndarray,
    *,
    back: bool = True,
    addition: float = 0.0,
) -> tuple[np.ndarray, list[Hop]]:
    """When each device has the sum, and the hops.

    Args:
        topology: of the devices that take part, in their order.
        rounds: as `reason.transfers.reduction` gives them.
        ready: for each device and message, when the device has its own part of it.
        sizes: bytes of the messages, in the order in which they leave.
        back: whether the sum is sent back to all.
        addition: seconds to add all messages of one device to those of another.
    """
    held = ready.astype(float)
    hops: list[Hop] = []
    adding = addition * sizes / max(1.0, float(sizes.sum()))
    for pairs in rounds:
        _round(topology, list(pairs), held, held, sizes, hops, adding)
    if not back:
        return held.max(axis=1), hops
    everywhere = np.full_like(held, np.inf)
    everywhere[0] = held[0]
    for pairs in reversed(list(rounds)):
        turned = [(target, source) for source, target in pairs]
        _round(topology, turned, everywhere, everywhere, sizes, hops, np.zeros_like(adding), arrive=True)
    return everywhere.max(axis=1), hops


def _round(
    topology: Topology,
    pairs: list[tuple[int, int]],
    sent: np.ndarray,
    got: np.ndarray,
    sizes: np.ndarray,
    hops: list[Hop],
    adding: np.ndarray,
    *,
    arrive: bool = False,
) -> None:
    """Let all pairs of a round send all messages; what arrives is added, or with `arrive` is all."""
    sources = np.array([source for source, _ in pairs])
    targets = np.array([target for _, target in pairs])
    links = [topology.links[source][target] for source, target in pairs]
    latency = np.array([link.latency for link in links])
    pace = np.array([1.0 / link.bandwidth for link in links])
    leaves = sent[sources]
    free = np.full(len(pairs), -np.inf)
    ends = np.empty_like(leaves)
    for m, size in enumerate(sizes):
        free = np.maximum(leaves[:, m], free) + size * pace
        ends[:, m] = free + latency
    starts = leaves[:, 0]
    # Several may send to one device in a round, which adds what comes one by one.
    for at in range(len(pairs)):
        target = targets[at]
        got[target] = ends[at] if arrive else np.maximum(got[target], ends[at]) + adding
    total = int(sizes.sum())
    begins, ended = starts.tolist(), ends[:, -1].tolist()
    hops += [
        Hop(s, t, a, b, total)
        for s, t, a, b in zip(sources.tolist(), targets.tolist(), begins, ended, strict=True)
    ]
