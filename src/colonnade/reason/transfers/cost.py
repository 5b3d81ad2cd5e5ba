"""What moving bytes costs, in seconds: a copy, and the reductions over a group of devices.

With n devices, S bytes on each and a ring of bandwidth B:

    ring          2 (n - 1) / n * S / B       reduce-scatter, then all-gather; 2 (n - 1) steps of latency
    tree          2 * S / B                   few steps of latency; half the bandwidth at a time, and less of
                                              it for messages of medium size
    scatter       as the ring                 its two halves, with the update in between
    hierarchical  inside machines, then between one device of each, then inside again

The figures of links are those of the topology: published ones, or measured ones in their place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2

from colonnade.describe import speeds
from colonnade.describe.link import Link
from colonnade.describe.topology import Topology
from colonnade.reason.transfers.rings import ring_bandwidth

# Trees do not follow the formula for messages of medium size. The part of its bandwidth that they reach
# there is what the tuner of NCCL takes: for 64 bytes, and each power of two from there on (the table
# treeCorrectionFactor, Simple, in src/graph/tuning.cc). Larger messages than the last follow the formula.
TREE_FROM = 64
TREE_REACHES = (
    *(0.9,) * 7,
    *(0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 1.0),
)


@dataclass(frozen=True)
class Group:
    """Devices that reduce together, as a ring sees them."""

    size: int
    machines: int
    bandwidth: float  # bytes per second of a ring through all of them
    inside: float  # the same inside a machine
    step: float  # seconds of latency of a step inside a machine
    network_step: float  # and of one between machines
    adapter: float = 0.0  # bytes per second of one adapter to the network
    adapters: float = 0.0  # of a machine, as many as this group may use

    @property
    def local(self) -> int:
        """Devices of a machine, where most are."""
        return ceil(self.size / self.machines)

    def net(self, rings: int) -> float:
        """Bytes per second of each of so many rings at once that go through every machine.

        A ring takes an adapter of its own as long as there are enough, and no ring takes two.
        """
        return self.adapter * min(1.0, self.adapters / rings)


def copy(link: Link, size: float, sharing: float = 1) -> float:
    """Seconds of a copy over a link that `sharing` copies use at once, or as many for each adapter of it.

    >>> from colonnade.describe.link import Link
    >>> round(copy(Link.of("PIX"), 12e9), 3)
    1.0
    """
    return link.latency + size * sharing / link.bandwidth if size else 0.0


def group_of(topology: Topology, members: Sequence[int], sharing: int = 1) -> Group:
    """What a reduction over these devices sees; `sharing` groups use the network of a machine at once."""
    return _group(topology, tuple(members), sharing)


@lru_cache(maxsize=65536)
def _group(topology: Topology, members: tuple[int, ...], sharing: int) -> Group:
    homes: dict[int, list[int]] = {}
    for device in members:
        homes.setdefault(topology.machine_of(device), []).append(device)
    starts = getattr(topology.links, "starts", (0,))
    seen: dict[tuple[Topology, tuple[int, ...]], float] = {}
    for machine, devices in homes.items():
        local = (topology.boxes[machine], tuple(device - starts[machine] for device in devices))
        if local not in seen:
            seen[local] = ring_bandwidth(*local)
    inside = min(seen.values())
    step = _step(topology, next((devices for devices in homes.values() if len(devices) > 1), []))
    if len(homes) == 1:
        return Group(len(members), 1, inside, inside, step, 0.0)
    assert topology.network is not None
    # Where a machine has several members, a ring of each leaves through an adapter of its own.
    adapters = max(1, topology.adapters) / sharing
    rings = min(float(len(devices)) for devices in homes.values())
    net = topology.network.bandwidth * min(rings, adapters)
    # What the network adds to its usual latency, as when it is a slow one, it adds to every step.
    more = max(0.0, topology.network.latency - speeds.latency("NET", True))
    return Group(
        len(members),
        len(homes),
        min(inside, net),
        inside,
        step,
        speeds.figure("collective net", "latency") + more,
        topology.network.bandwidth,
        adapters,
    )


def _step(topology: Topology, devices: Sequence[int]) -> float:
    if len(devices) < 2:
        return 0.0
    level = speeds.level(topology.links[devices[0]][devices[1]].kind)
    if level in ("X", "MEM"):
        return 0.0
    return speeds.figure("collective nvlink" if level == "NV" else "collective pcie", "latency")


def all_reduce(group: Group, size: float, how: str = "ring") -> float:
    """Seconds until every device of a group has the sum of what all have, `size` bytes on each.

    >>> from colonnade.describe.topology import Topology
    >>> group = group_of(Topology.uniform(4, "NV4"), range(4))
    >>> all_reduce(group, 1e9) > reduce_scatter(group, 1e9) > 0
    True
    """
    if group.size < 2 or not size:
        return 0.0
    if how == "best":
        return min(all_reduce(group, size, one) for one in ("ring", "tree"))
    if how == "scatter":
        return reduce_scatter(group, size) + all_gather(group, size)
    if how == "tree":
        hops = ceil(log2(group.machines)) if group.machines > 1 else 0
        local = group.local - 1
        latency = _base(group) + 2 * (local * group.step + hops * group.network_step)
        reached = group.bandwidth * speeds.figure("tree", "factor") * _tree_reaches(size)
        return latency + 2 * size / reached
    if how == "hierarchical" and group.machines > 1:
        return _hierarchical(group, size)
    steps = 2 * (group.size - 1)
    between = 2 * group.machines if group.machines > 1 else 0
    latency = _base(group) + max(0, steps - between) * group.step + between * group.network_step
    return latency + _part(group.size, 2) * size / group.bandwidth


def reduce_scatter(group: Group, size: float) -> float:
    """Seconds until every device has its part of the sum."""
    if group.size < 2 or not size:
        return 0.0
    between = group.machines if group.machines > 1 else 0
    latency = _base(group) + max(0, group.size - 1 - between) * group.step + between * group.network_step
    return latency + _part(group.size, 1) * size / group.bandwidth


def all_gather(group: Group, size: float) -> float:
    """Seconds until every device has all of `size` bytes, of which each had a part: a scatter backwards."""
    return reduce_scatter(group, size)


def gather_rows(group: Group, size: float) -> float:
    """Seconds until every device has the rows of all others, `size` bytes of each: sparse gradients.

    >>> from colonnade.describe.topology import Topology
    >>> group = group_of(Topology.uniform(2, "NV4"), range(2))
    >>> gather_rows(group, 1e6) == all_gather(group, 2e6)
    True
    """
    return all_gather(group, group.size * size)


def through_host(topology: Topology, members: Sequence[int], size: float) -> float:
    """Seconds until all have the sum that the processor made: up over PCIe and back, every device by its
    own port.

    >>> from colonnade.describe.topology import Topology
    >>> round(through_host(Topology.uniform(2, "NV4"), [0, 1], 12e9), 3)
    2.0
    """
    names = {topology.devices[device].name for device in members}
    slowest = min(speeds.bandwidth("PHB", True, name) for name in names)
    return 2 * (speeds.latency("PHB", False) + size / slowest)


def _hierarchical(group: Group, size: float) -> float:
    local = group.local
    inner = Group(local, 1, group.inside, group.inside, group.step, 0.0)
    # Each device of a machine reduces its part with its like in the others, all of them at once.
    outer = Group(group.machines, group.machines, group.net(local), group.inside, 0.0, group.network_step)
    scattered = reduce_scatter(inner, size) + all_gather(inner, size)
    return scattered + all_reduce(outer, size / local)


def _tree_reaches(size: float) -> float:
    """The part of its bandwidth that a tree reaches with messages of this size; between powers of two a line.

    >>> _tree_reaches(16 * 2**20), _tree_reaches(24 * 2**20) == _tree_reaches(16 * 2**20)
    (0.7, True)
    """
    at = min(max(log2(size / TREE_FROM), 0.0), len(TREE_REACHES) - 1)
    low = min(int(at), len(TREE_REACHES) - 2)
    return TREE_REACHES[low] + (at - low) * (TREE_REACHES[low + 1] - TREE_REACHES[low])


def _part(count: int, times: int) -> float:
    return times * (count - 1) / count


def _base(group: Group) -> float:
    slow = group.step or group.network_step
    return speeds.figure("collective", "latency") if slow else 0.0
