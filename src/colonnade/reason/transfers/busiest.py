"""How much of a sum goes through the busiest device, and so how long the sum takes by the links' figures.

With n devices, and S bytes on each that all of them shall have the sum of, up to where it is added and back:

    star    2 (n - 1) S        all send to one, which sends to all
    tree    2 log2(n) S        two by two, and back
    ring    2 (n - 1) / n S    each device adds up a part of its own

The numbers are counted along the orders that the engine uses.
"""

from collections import Counter

from colonnade.describe.topology import Topology
from colonnade.errors import InvalidArgument, Problem
from colonnade.reason.transfers.reduction import reduction
from colonnade.reason.transfers.rings import ring_bandwidth

WAYS = ("star", "tree", "ring")


def through_busiest(topology: Topology, how: str) -> float:
    """Bytes that the busiest device sends or gets, up and back, for each byte that every device holds.

    >>> [through_busiest(Topology.uniform(8, "NV12"), how) for how in WAYS]
    [14.0, 6.0, 1.75]
    """
    n = len(topology)
    if how not in WAYS:
        fix = 'Choose "ring"'
        raise InvalidArgument("through_busiest()", [Problem("how", how, f"must be one of {WAYS}", fix)])
    if how == "star":
        return 2.0 * (n - 1)
    roots = range(n) if how == "ring" else (0,)
    sent, got = Counter[int](), Counter[int]()
    for root in roots:
        for source, target in (pair for pairs in reduction(topology, root) for pair in pairs):
            sent[source] += 1
            got[target] += 1
    # What is sent up comes back the same way.
    return 2 * max([*sent.values(), *got.values()], default=0) / len(roots)


def seconds(topology: Topology, how: str, size: float) -> float:
    """How long a sum of so many bytes takes if the links of the busiest device do nothing else.

    >>> round(1e3 * seconds(Topology.uniform(8, "PIX"), "ring", 1.2e9))
    175
    """
    return through_busiest(topology, how) * size / ring_bandwidth(topology, tuple(range(len(topology))))
