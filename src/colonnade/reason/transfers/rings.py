"""How fast a ring through a group of devices is: the bandwidth that a ring reduction sees.

Cards that are wired to each other one by one form several rings at once, each over links of its own and in
both directions; behind a switch every card sends with all its links; on PCIe a card has one port, and the
slowest link of the ring counts.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations

from colonnade.describe import speeds
from colonnade.describe.topology import Topology

# Up to this many devices all rings are tried; beyond, the devices are taken in the order given.
EXACT = 8
# No card has had more links than this.
MOST_LINKS = 18


@lru_cache(maxsize=4096)
def ring_bandwidth(box: Topology, members: tuple[int, ...]) -> float:
    """Bytes per second that every member of a ring inside one machine sends, in all rings together.

    >>> from colonnade.describe.topology import Topology
    >>> ring_bandwidth(Topology.uniform(4, "PIX"), (0, 1, 2, 3)) / 1e9
    12.0
    """
    if len(members) < 2:
        return float("inf")
    capacity = {(i, j): _both_ways(box, i, j) for i in members for j in members if i != j}
    if len(members) == 2:
        return capacity[members[0], members[1]]
    direct = all(speeds.level(box.links[i][j].kind) == "NV" and box.links[i][j].peer for i, j in capacity)
    if not direct:
        wired = {pair for pair in capacity if speeds.level(box.links[pair[0]][pair[1]].kind) == "NV"}
        if not wired or not _connected(members, wired):
            return _slowest(members, capacity)
        capacity = {pair: rate if pair in wired else 0.0 for pair, rate in capacity.items()}
        rings = _disjoint(members, capacity)
        return rings if rings > 0 else _slowest(members, {p: _both_ways(box, *p) for p in capacity})
    port = min(_port(box, i) for i in members)
    wired_in = min(sum(capacity[i, j] for j in members if j != i) for i in members)
    if wired_in > port:  # a switch: every pair is joined with all links that a card has
        return port
    return min(port, _disjoint(members, capacity))


def _both_ways(box: Topology, i: int, j: int) -> float:
    return min(box.links[i][j].bandwidth, box.links[j][i].bandwidth)


def _port(box: Topology, device: int) -> float:
    """What a card sends at most over all its NVLinks together."""
    links = [link for link in box.links[device] if speeds.level(link.kind) == "NV"]
    each = links[0].bandwidth / int(links[0].kind[2:])
    number = speeds.of_card(box.devices[device].name, "nvlinks")
    wired = sum(int(link.kind[2:]) for link in links)
    if number is None:
        number = wired if wired <= MOST_LINKS else max(int(link.kind[2:]) for link in links)
    return number * each


def _connected(members: Sequence[int], pairs: set[tuple[int, int]]) -> bool:
    reached, todo = {members[0]}, [members[0]]
    while todo:
        here = todo.pop()
        new = [j for j in members if (here, j) in pairs and j not in reached]
        reached.update(new)
        todo += new
    return len(reached) == len(members)


def _slowest(members: Sequence[int], capacity: dict[tuple[int, int], float]) -> float:
    """The best ring's slowest link."""
    ring = _best_ring(members, capacity)
    return min(capacity[pair] for pair in _edges(ring))


def _disjoint(members: Sequence[int], capacity: dict[tuple[int, int], float]) -> float:
    """All rings over links of their own, each in both directions; the better of two ways to choose."""
    return max(_chosen(members, capacity, wide) for wide in (1.0, -1.0))


def _chosen(members: Sequence[int], capacity: dict[tuple[int, int], float], wide: float) -> float:
    left, total = dict(capacity), 0.0
    while True:
        ring = _best_ring(members, left, wide)
        narrowest = min(left[pair] for pair in _edges(ring))
        if narrowest <= 0:
            return total
        total += 2 * narrowest
        for i, j in _edges(ring):
            left[i, j] -= narrowest
            left[j, i] -= narrowest


def _best_ring(
    members: Sequence[int], capacity: dict[tuple[int, int], float], wide: float = 1.0
) -> tuple[int, ...]:
    """The ring whose slowest link is fastest; of equals the one of wide links, or with -1 of narrow ones."""
    first, *others = members
    if len(members) > EXACT:
        return tuple(members)

    def worth(order: tuple[int, ...]) -> tuple[float, float]:
        rates = [capacity[pair] for pair in _edges((first, *order))]
        return min(rates), wide * sum(rates)

    return (first, *max(permutations(others), key=worth))


def _edges(ring: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(ring, [*ring[1:], ring[0]], strict=True))
