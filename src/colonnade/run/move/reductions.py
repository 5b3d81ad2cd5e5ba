"""The values of `reduce=`: how gradients are summed, and which way suits these devices."""

from collections.abc import Iterator, Sequence
from typing import Any

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.probes import collective, verdicts

AUTO, TREE, RING, LIBRARY = "auto", "tree", "ring", collective.NAME
REDUCTIONS = (AUTO, TREE, RING, LIBRARY)
# For each device: of fewer bytes than that, one message for all is faster than one for every device.
SMALL = 2**16


def chosen(reduce: str, devices: Sequence[str], mode: str) -> str:
    """What is to be done: `tree`, `ring`, or the cards' own library.

    `auto` on cards is what the self-test of this machine found fastest. The cards' library is among the
    choices only where it has passed. Without a self-test it is the ring, and on CPU devices the tree, which
    is a star there.
    """
    if reduce != AUTO:
        return reduce
    if len(devices) < 2 or not hardware.are_cards(devices):
        return TREE
    seconds = dict(verdicts.recall(devices))
    if mode != "mirrored" or any(collective.refusals(devices)):
        seconds.pop(LIBRARY, None)
    return min(seconds, key=lambda way: seconds[way]) if seconds else RING


def value_problems(reduce: Any) -> Iterator[Problem]:
    """Whether this is a value of `reduce=` at all."""
    if not isinstance(reduce, str) or reduce not in REDUCTIONS:
        yield Problem("reduce", reduce, f"must be one of {', '.join(REDUCTIONS)}", "Leave it out for auto")


def reduce_problems(
    reduce: str, devices: Sequence[str], mode: str, *, synchronous: bool, joins: bool, machines: bool
) -> Iterator[Problem]:
    """What a value of `reduce=` does not go with.

    Args:
        reduce: one of `REDUCTIONS`.
        devices: those of the training.
        mode: where variables live.
        synchronous: whether all replicas add up their gradients at every step.
        joins: whether they add up their variables from time to time.
        machines: whether several machines train together.
    """
    if reduce == AUTO:
        return
    if machines:
        rule = "is for the devices of one machine; between machines sums go round a ring"
        yield Problem("reduce", reduce, rule, "Leave it out")
    elif not synchronous and not (joins and reduce == TREE):
        said = "cn.Synchronous(), whose replicas add up their gradients at every step"
        yield Problem("reduce", reduce, f"has a meaning only with {said}", "Leave it out")
    elif reduce == LIBRARY:
        yield from _of_library(devices, mode)


def _of_library(devices: Sequence[str], mode: str) -> Iterator[Problem]:
    fix = 'Choose reduce="ring", or leave it out'
    if mode != "mirrored":
        rule = f"leaves the sums on every card, and with variables={mode!r} one device needs each"
        yield Problem("reduce", LIBRARY, rule, f'Choose variables="mirrored"; or reduce="{RING}"')
    for rule in collective.refusals(devices):
        yield Problem("reduce", LIBRARY, rule, fix)
