"""A machine as a picture: its devices and links, and what goes over them; of large machines the counts."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from colonnade.describe.pictures.html import network, paragraphs, size, table

if TYPE_CHECKING:
    from colonnade.describe.link import Link
    from colonnade.describe.topology import Topology

# A picture of more devices shows nothing, and its links are the square of them.
MOST_DEVICES = 32


def machine_map(topology: "Topology") -> str:
    """The devices, and the kinds of links between them."""
    if len(topology) > MOST_DEVICES:
        machines = f" on {len(topology.boxes):,} machines" if len(topology.boxes) > 1 else ""
        words = f"{len(topology):,} devices{machines}; up to {MOST_DEVICES} are drawn, such as by select()."
        return paragraphs([words]) + kinds_of_links(topology)
    names = [device.name for device in topology.devices]
    pairs = {
        (i, j): (told(link), 0.0 if math.isinf(link.bandwidth) else link.bandwidth)
        for i, row in enumerate(topology.links)
        for j, link in enumerate(row)
        if i != j
    }
    kinds = [[name, *(link.kind for link in row)] for name, row in zip(names, topology.links, strict=True)]
    return network(names, pairs) + table(["", *names], kinds)


def kinds_of_links(topology: "Topology") -> str:
    """How many links there are of each kind, as a table."""
    counts = count_links(topology)
    rows = [(link.kind, _speed(link), f"{count:,}") for link, count in counts.most_common()]
    return table(["link", "speed", "from one device to another"], rows)


def count_links(topology: "Topology") -> "Counter[Link]":
    """How many links of a kind lead from one device to another.

    >>> from colonnade.describe.topology import Topology
    >>> box = Topology.uniform(4, "NV4")
    >>> [(link.kind, n) for link, n in count_links(Topology.machines(box, 1000)).items()]
    [('NV4', 12000), ('NET', 15984000)]
    """
    counts: Counter[Link] = Counter()
    # Machine by machine: ten thousand devices have too many pairs to look at.
    for box, copies in Counter(topology.boxes).items():
        for i, row in enumerate(box.links):
            for j, link in enumerate(row):
                counts[link] += copies * (i != j)
    if topology.network is not None:
        inside = sum(len(box) ** 2 for box in topology.boxes)
        counts[topology.network] += len(topology) ** 2 - inside
    return +counts


def traffic_map(
    names: Sequence[str], topology: "Topology | None", traffic: Mapping[tuple[str, str], float]
) -> str:
    """Devices, the links between them as far as they are known, and the bytes that go over each.

    Args:
        names: of the devices; those of the topology come first, in its order.
        topology: the links, if they are known.
        traffic: the bytes from one device to another.
    """
    if len(names) > MOST_DEVICES:
        return _largest(names, topology, traffic)
    at = {name: i for i, name in enumerate(names)}
    kinds = {} if topology is None else dict(_links(topology))
    moved = {(at[a], at[b]): (size(amount), amount) for (a, b), amount in traffic.items() if a != b}
    return network(names, moved, labelled=True, kinds=kinds)


def _links(topology: "Topology") -> Iterator[tuple[tuple[int, int], str]]:
    for i, row in enumerate(topology.links):
        for j, link in enumerate(row):
            if i != j:
                yield (i, j), told(link)


def _largest(
    names: Sequence[str], topology: "Topology | None", traffic: Mapping[tuple[str, str], float]
) -> str:
    """In the place of a picture: the kinds of links, and the pairs of devices between which most goes."""
    at = {name: i for i, name in enumerate(names)}
    known = 0 if topology is None else len(topology)
    order = sorted(((a, b) for a, b in traffic if a != b), key=lambda pair: -traffic[pair])
    rows = []
    for a, b in order:
        between = at[a] < known and at[b] < known
        kind = told(topology.links[at[a]][at[b]]) if topology is not None and between else ""
        rows.append((f"{a} → {b}", kind, size(traffic[a, b])))
    kinds = "" if topology is None else kinds_of_links(topology)
    return kinds + (table(["way", "link", "bytes of a step"], rows, most=MOST_DEVICES) if rows else "")


def told(link: "Link") -> str:
    """A link in words.

    >>> from colonnade.describe.link import Link
    >>> told(Link.of("PIX"))
    'PIX, 12 GB/s'
    """
    return f"{link.kind}, {_speed(link)}"


def _speed(link: "Link") -> str:
    return "shared memory" if math.isinf(link.bandwidth) else f"{link.bandwidth / 1e9:.3g} GB/s"
