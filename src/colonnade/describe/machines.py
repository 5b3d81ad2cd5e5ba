"""Several machines joined by a network, without a table of all pairs: ten thousand devices have too many."""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

from colonnade.describe import speeds
from colonnade.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    from colonnade.describe.link import Link
    from colonnade.describe.topology import Topology

_SPEED = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(Mb|Gb|Tb|MB|GB)(?:it)?(?:/s)?")
_BITS = {"Mb": 1e6, "Gb": 1e9, "Tb": 1e12}
_BYTES = {"MB": 1e6, "GB": 1e9}


class MachineLinks(Sequence["MachineRow"]):
    """`links[i][j]` of machines side by side: inside one its own links, between them the network.

    `network` is what one adapter carries; a copy takes one, and each machine has so many `adapters`.
    """

    def __init__(self, boxes: Sequence["Topology"], network: "Link", adapters: int = 1) -> None:
        self.boxes, self.network, self.adapters = tuple(boxes), network, adapters
        self.starts = (0, *accumulate(map(len, self.boxes)))
        self.home = tuple(m for m, box in enumerate(self.boxes) for _ in range(len(box)))

    def __len__(self) -> int:
        return self.starts[-1]

    @overload
    def __getitem__(self, at: int) -> "MachineRow": ...
    @overload
    def __getitem__(self, at: slice) -> Sequence["MachineRow"]: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [MachineRow(self, i) for i in range(len(self))[at]]
        return MachineRow(self, range(len(self))[at])

    def link(self, i: int, j: int) -> "Link":
        here, there = self.home[i], self.home[j]
        if here != there:
            return self.network
        start = self.starts[here]
        return self.boxes[here].links[i - start][j - start]

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, MachineLinks)
        if not same or (self.network, self.adapters) != (other.network, other.adapters):  # type: ignore[attr-defined]
            return False
        return self.boxes == other.boxes  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.boxes, self.network, self.adapters))


class MachineRow(Sequence["Link"]):
    """The links from one device."""

    def __init__(self, links: MachineLinks, source: int) -> None:
        self._links, self._source = links, source

    def __len__(self) -> int:
        return len(self._links)

    @overload
    def __getitem__(self, at: int) -> "Link": ...
    @overload
    def __getitem__(self, at: slice) -> Sequence["Link"]: ...
    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self._links.link(self._source, j) for j in range(len(self))[at]]
        return self._links.link(self._source, range(len(self))[at])

    def __iter__(self) -> Iterator["Link"]:
        return (self._links.link(self._source, j) for j in range(len(self)))


def adapter_bandwidth(speed: Any) -> float:
    """Bytes per second that one network adapter carries, by its name or in bytes per second.

    A name is the rate of the line in bits (100Gb) or in bytes (12.5GB); of that, as much arrives as the
    published figure says of an adapter of 100 Gbit/s.

    >>> adapter_bandwidth("100Gb") / 1e9, adapter_bandwidth(5e9) / 1e9
    (12.0, 5.0)
    """
    match = _SPEED.fullmatch(speed.strip()) if isinstance(speed, str) else None
    if match:
        value, unit = float(match[1]), match[2]
        line = value * _BITS[unit] / 8 if unit in _BITS else value * _BYTES[unit]
        arrives = line * speeds.figure("net", "bandwidth") / (100e9 / 8)
        if arrives > 0:
            return arrives
    if isinstance(speed, int | float) and not isinstance(speed, bool) and 0 < speed < float("inf"):
        return float(speed)
    rule = "must be the rate of an adapter, such as 100Gb, or bytes per second"
    raise InvalidArgument("Topology.machines()", [Problem("network", speed, rule, "Try network='100Gb'")])
