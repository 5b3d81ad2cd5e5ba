"""What replicas that divide variables among them send in a step, and what of it their work hides.

    divided                          gathered                        scattered
    slots                            parameters, after the update    gradients
    slots, gradients                 parameters, after the update    gradients, as they come up
    slots, gradients, parameters     parameters, twice: for the      gradients, as they come up
                                     forward and the backward pass
    slots, parameters (the engine)   parameters, once: what is read  gradients, to the owners
                                     is kept for the backward pass

(Rajbhandari and others, 2020; Zhao and others, 2023.) A scatter sends (n - 1) / n of all bytes of every
device, a gather as many, so that dividing parameters too costs half as much again as an all-reduce. With
overlap, what comes next is gathered while something is computed; messages share the links one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerGroup:
    """A part of the layers, in the order of the forward pass: its work and its messages, in seconds."""

    forward: float
    backward: float
    gather: float  # of its parameters
    scatter: float  # of its gradients


def gathers(sharded: Sequence[str]) -> tuple[bool, bool, bool]:
    """Whether parameters are gathered for the forward pass, for the backward pass, and after the update.

    >>> gathers(("slots",)), gathers(("slots", "gradients", "parameters"))
    ((False, False, True), (True, True, False))
    """
    if "parameters" not in sharded:
        return False, False, True
    return True, "gradients" in sharded, False


def exposed(pieces: Sequence[LayerGroup], sharded: Sequence[str], *, overlap: bool, times: int = 1) -> float:
    """Seconds that messages add to a step whose work is done `times` times, once for each micro-batch.

    >>> pieces = [LayerGroup(1.0, 2.0, 0.5, 0.5)] * 4
    >>> exposed(pieces, ("slots",), overlap=False), exposed(pieces, ("slots",), overlap=True)
    (4.0, 2.5)
    >>> exposed(pieces, ("slots", "gradients", "parameters"), overlap=False)
    6.0
    >>> exposed(pieces, ("slots", "gradients", "parameters"), overlap=True)
    1.5
    """
    ahead, back, after = gathers(sharded)
    gathered, scattered = sum(p.gather for p in pieces), sum(p.scatter for p in pieces)
    # Gradients of micro-batches are added up where they came up, unless each device keeps its part only.
    scatters = times if "gradients" in sharded else 1
    if not overlap:
        return (times * (ahead + back) + after) * gathered + scatters * scattered
    first = _ahead(pieces) if ahead else 0.0
    last = _back(pieces, gather=back, scatter=True)
    between = _back(pieces, gather=back, scatter="gradients" in sharded)
    return times * first + (times - 1) * between + last + after * gathered


def _ahead(pieces: Sequence[LayerGroup]) -> float:
    """Added to the forward pass: a piece waits for its parameters, which come one after the other."""
    now = arrived = 0.0
    for piece in pieces:
        arrived += piece.gather
        now = max(now, arrived) + piece.forward
    return now - sum(piece.forward for piece in pieces)


def _back(pieces: Sequence[LayerGroup], *, gather: bool, scatter: bool) -> float:
    """Added to the backward pass: the next piece is gathered, then the gradients of the last one leave."""
    turned = list(reversed(pieces))
    link = turned[0].gather if gather and turned else 0.0
    now, arrived = 0.0, link
    for k, piece in enumerate(turned):
        now = max(now, arrived)
        if gather and k + 1 < len(turned):
            link = max(link, now) + turned[k + 1].gather
            arrived = link
        now += piece.backward
        if scatter:
            link = max(link, now) + piece.scatter
    return max(now, link if scatter else now) - sum(piece.backward for piece in pieces)
