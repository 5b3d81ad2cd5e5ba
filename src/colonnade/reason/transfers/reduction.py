"""The order in which devices add up gradients: who sends to whom, the fastest links first."""

from collections import Counter
from collections.abc import Iterator

from colonnade.describe.topology import Topology
from colonnade.errors import InvalidArgument, Problem, is_whole

Round = tuple[tuple[int, int], ...]  # pairs (source, target); all pairs of a round run at once


# Each device holds a sum; a pair adds the source's to the target's. With peers {0, 1} and {2, 3}:
#
#   round | 0        1    2        3
#   ------+--------------------------
#     1   | 0+1    <-     2+3    <-       two links inside the pairs, at once
#     2   | 0+1+2+3    <-                 one message between the pairs
#
# The pairs form a tree. It is grown as Kruskal grows one, from the best kind of link to the worst, so
# each kind of link carries as few messages as any reduction can: one less than it joins islands.
# Islands join two by two, which halves their number in a round.
def reduction(topology: Topology, root: int = 0) -> Iterator[Round]:
    """Rounds of (source, target) pairs that add what all devices hold on the device `root`.

    In a round a device sends or receives once at most, and everything it has received before goes
    along. Reversed, with every pair turned round, the rounds broadcast from `root`.

    Where all links are alike, the rounds of all roots together give every device the same work.

    Example:
        >>> list(reduction(Topology.groups([[0, 1], [2, 3]])))
        [((1, 0), (3, 2)), ((2, 0),)]
    """
    if not is_whole(root, 0, len(topology) - 1):
        rule, fix = f"no such device among {len(topology)}", f"Indices go from 0 to {len(topology) - 1}"
        raise InvalidArgument("reduction()", [Problem("root", root, rule, fix)])
    if topology.network is not None:
        return _rounds(topology, _over_machines(topology, root))
    return _rounds(topology, _targets(topology, root))


def _over_machines(topology: Topology, root: int) -> dict[int, int]:
    """As source -> target: inside every machine its own tree, then the machines two by two.

    It is what `_tree` would give, where links inside machines are better than the network, without a look
    at all pairs of devices.
    """
    starts = getattr(topology.links, "starts", (0,))
    home = topology.machine_of(root)
    trees: dict[tuple[Topology, int], dict[int, int]] = {}
    target: dict[int, int] = {}
    firsts = []
    for machine, box in enumerate(topology.boxes):
        local = root - starts[machine] if machine == home else 0
        if (box, local) not in trees:
            trees[box, local] = _targets(box, local)
        start = starts[machine]
        target |= {start + source: start + goal for source, goal in trees[box, local].items()}
        firsts.append(start + local)
    islands = [firsts.pop(home), *firsts]
    while len(islands) > 1:
        target |= dict(zip(islands[1::2], islands[::2], strict=False))
        islands = islands[::2]
    return target


def _targets(topology: Topology, root: int) -> dict[int, int]:
    """As source -> target: the tree that leads to `root`, drawn as `root` sees the devices.

    Of equal links those to the lowest numbers are taken. If every root counted alike, device 0 would be in
    the middle of most trees.
    """
    seen = seen_from(root, len(topology))
    return _towards(root, [(seen[i], seen[j]) for i, j in _tree(topology.select(seen))])


def seen_from(root: int, num_devices: int) -> list[int]:
    """The devices as `root` counts them: itself first, then those that are near by their numbers.

    Of a power of two, halves stay halves and pairs stay pairs, so that islands of cards do too.

    >>> seen_from(2, 4), seen_from(1, 3)
    ([2, 3, 0, 1], [1, 2, 0])
    """
    if num_devices & (num_devices - 1) == 0:
        return [device ^ root for device in range(num_devices)]
    return [(device + root) % num_devices for device in range(num_devices)]


def _tree(topology: Topology) -> list[tuple[int, int]]:
    """Links that join all devices, with as few as possible of each kind, starting from the worst."""
    islands = [[i] for i in range(len(topology))]  # the first of an island is where its sum ends up
    edges = []
    for tier in sorted({_tier(topology, i, j) for i in range(len(topology)) for j in range(i)}):
        while joined := list(_matching(topology, islands, tier)):
            for a, b, i, j in joined:
                edges.append((i, j))
                a.extend(b)
                a.sort()
                b.clear()
            islands = [island for island in islands if island]
    return edges


def _matching(
    topology: Topology, islands: list[list[int]], tier: tuple[bool, int]
) -> Iterator[tuple[list[int], list[int], int, int]]:
    """Pairs of islands to join over links up to `tier`, each island once, with the link for each.

    A link between the firsts of two islands costs no detour, so it comes before a stronger one
    that does; a detour comes before a worse tier.
    """
    links = [
        ((i, j) != (a[0], b[0]), _negative(_strength(topology, i, j)), i, j, a, b)
        for at, a in enumerate(islands)
        for b in islands[at + 1 :]
        for i in a
        for j in b
        if _tier(topology, i, j) <= tier
    ]
    taken: set[int] = set()
    for _, _, i, j, a, b in sorted(links, key=lambda link: link[:4]):
        if not taken & {*a, *b}:
            taken |= {*a, *b}
            yield a, b, i, j


def _towards(root: int, edges: list[tuple[int, int]]) -> dict[int, int]:
    """The edges of a tree as source -> target, all of them leading to `root`."""
    target: dict[int, int] = {}
    reached = [root]
    for here in reached:
        for i, j in edges:
            there = j if i == here else i if j == here else here
            if there not in (here, root) and there not in target:
                target[there] = here
                reached.append(there)
    return target


def _rounds(topology: Topology, target: dict[int, int]) -> Iterator[Round]:
    """Send as soon as everything has arrived; where several could, the best link goes first."""
    waiting = dict(target)
    awaited = Counter(target.values())  # how many each device still waits for
    ready = [source for source in waiting if not awaited[source]]
    while waiting:
        ready.sort(
            key=lambda s: (_tier(topology, s, target[s]), _negative(_strength(topology, s, target[s])), s)
        )
        chosen = {target[source]: source for source in reversed(ready)}
        sending = [source for source in ready if chosen[target[source]] == source]
        for source in sending:
            del waiting[source]
            awaited[target[source]] -= 1
        yield tuple((source, target[source]) for source in sending)
        sent = set(sending)
        ready = [source for source in ready if source not in sent]
        ready += [target[s] for s in sending if target[s] in waiting and not awaited[target[s]]]


def _tier(topology: Topology, i: int, j: int) -> tuple[bool, int]:
    """Of the two directions the worse one counts: sums come one way, and results go back the other."""
    return max(topology.links[i][j].tier, topology.links[j][i].tier)


def _strength(topology: Topology, i: int, j: int) -> tuple[float, ...]:
    return min(topology.links[i][j].strength, topology.links[j][i].strength)


def _negative(strength: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(-part for part in strength)
