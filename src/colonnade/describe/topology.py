"""`cn.Topology`: a machine as plain data, its devices and the link between each pair of them."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from colonnade.describe import matrix, speeds
from colonnade.errors import InvalidArgument, Problem, check, is_whole

# Up to this many devices `best` looks at every choice; beyond, it grows one from every device.
EXACT = 16


@dataclass(frozen=True)
class Device:
    """One device: a card, or a virtual CPU device."""

    name: str = "device"
    memory: int | None = None  # bytes
    flops: float | None = None  # peak FLOP/s in float32
    numa: int | None = None


def _kind_problem(kind: object) -> Problem:
    known = "NV1 to NV99, " + ", ".join(name for name in speeds.LEVELS if name != "NV")
    return Problem("kind", kind, "is no kind of link", f"One of: {known}")


def _link_problems(link: "Link") -> Iterable[Problem]:
    if not isinstance(link.kind, str) or not speeds.level(link.kind):
        yield _kind_problem(link.kind)
    for name, smallest in (("bandwidth", "above 0"), ("latency", "0 or more")):
        value = getattr(link, name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
        if not number or value < 0 or (name == "bandwidth" and value == 0):
            yield Problem(name, value, f"must be a number, {smallest}", "Use bytes per second, and seconds")
    if not isinstance(link.peer, bool):
        yield Problem("peer", link.peer, "must be True or False", "Try peer=True")


@dataclass(frozen=True)
class Link:
    """The way from one device to another.

    `kind` is what `nvidia-smi topo -m` calls it (NV4, PIX, PXB, PHB, NODE, SYS), or NET for another
    machine, MEM for devices that share one memory. `peer`: whether the devices reach each other's
    memory directly; without it everything goes through the host.
    """

    kind: str
    bandwidth: float  # bytes per second, one direction
    latency: float  # seconds
    peer: bool

    def __post_init__(self) -> None:
        check("Link", _link_problems(self))

    @property
    def tier(self) -> tuple[bool, int]:
        """Smaller is better: direct links before those through the host, then by kind."""
        return (not self.peer, speeds.LEVELS.index(speeds.level(self.kind)))

    @property
    def strength(self) -> tuple[int, int, float, float]:
        """Larger is better: the tier, and within it the bandwidth, then the latency."""
        through_host, level = self.tier
        return (-int(through_host), -level, self.bandwidth, -self.latency)

    @classmethod
    def of(cls, kind: str, *, peer: bool | None = None, card: str = "") -> "Link":
        """A link of this kind with published figures; `peer` by default as the kind suggests.

        >>> Link.of("PIX")
        Link(kind='PIX', bandwidth=12000000000.0, latency=6.3e-06, peer=True)
        """
        if not isinstance(kind, str) or not speeds.level(kind):
            raise InvalidArgument("Link", [_kind_problem(kind)])
        direct = speeds.suggests_peer(kind) if peer is None else peer
        return cls(kind, speeds.bandwidth(kind, direct, card), speeds.latency(kind, direct), direct)


SELF = Link.of("X")
SHARED = Link.of("MEM")


@dataclass(frozen=True)
class Topology:
    """Devices and the links between them; `links[i][j]` leads from device i to device j.

    Example:
        >>> import colonnade as cn
        >>> pairs = cn.Topology.groups([[0, 1], [2, 3]])
        >>> pairs.link(0, 1).peer, pairs.link(0, 2).peer, pairs.best(2)
        (True, False, (0, 1))
        >>> cn.Topology.from_json(pairs.to_json()) == pairs
        True
    """

    devices: tuple[Device, ...]
    links: tuple[tuple[Link, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        object.__setattr__(self, "links", tuple(map(tuple, self.links)))
        shape, n = [len(row) for row in self.links], len(self.devices)
        if n == 0 or shape != [n] * n:
            rule = f"must have one row and one column for each of {n} devices, and at least one device"
            raise InvalidArgument(
                "Topology", [Problem("links", shape, rule, "Use links[i][j], also for i == j")]
            )

    def __len__(self) -> int:
        return len(self.devices)

    def link(self, i: int, j: int) -> Link:
        """The link from device i to device j."""
        check("Topology.link()", [*self._index_problems("i", i), *self._index_problems("j", j)])
        return self.links[i][j]

    def select(self, indices: Iterable[int]) -> "Topology":
        """The part of the machine with these devices, in this order.

        An index may come twice, as when a card is divided: the two then share its memory.
        """
        chosen = tuple(indices)
        check("Topology.select()", self._index_problems("indices", *chosen))
        links = tuple(
            tuple(SELF if a == b else SHARED if i == j else self.links[i][j] for b, j in enumerate(chosen))
            for a, i in enumerate(chosen)
        )
        return Topology(tuple(self.devices[i] for i in chosen), links)

    def best(self, k: int, among: Iterable[int] | None = None) -> tuple[int, ...]:
        """The k devices with the best worst link between them; exact up to 16 devices.

        Args:
            k: how many.
            among: the indices to choose from; all by default.

        Example:
            >>> import colonnade as cn
            >>> cn.Topology.groups([[0, 2], [1, 3]]).best(2, among=[0, 1, 3])
            (1, 3)
        """
        candidates = tuple(range(len(self))) if among is None else tuple(sorted(set(among)))
        check("Topology.best()", self._index_problems("among", *candidates))
        if not is_whole(k, 1, len(candidates)):
            rule = f"must be a whole number from 1 to {len(candidates)}"
            raise InvalidArgument("Topology.best()", [Problem("k", k, rule, "Ask for fewer devices")])
        rank = self._ranks()

        def score(chosen: Sequence[int]) -> tuple[int, int]:
            pairs = [rank[i][j] for i, j in combinations(chosen, 2)]
            return (min(pairs, default=0), sum(pairs))

        if len(candidates) <= EXACT:
            # max() keeps the first of equals, which is the one with the lowest indices.
            return max(combinations(candidates, k), key=score)
        grown = []
        for start in candidates:
            chosen = [start]
            while len(chosen) < k:
                rest = [i for i in candidates if i not in chosen]
                chosen.append(max(rest, key=lambda i: (min(rank[i][j] for j in chosen), -i)))
            grown.append(tuple(sorted(chosen)))
        return max(grown, key=score)

    def _ranks(self) -> list[list[int]]:
        """Links as whole numbers, larger is better; of the two directions the worse one counts."""
        n = range(len(self))
        pairs = [[min(self.links[i][j].strength, self.links[j][i].strength) for j in n] for i in n]
        order = {strength: at for at, strength in enumerate(sorted({s for row in pairs for s in row}))}
        return [[order[strength] for strength in row] for row in pairs]

    def _index_problems(self, argument: str, *indices: int) -> list[Problem]:
        rule, fix = f"no such device among {len(self)}", f"Indices go from 0 to {len(self) - 1}"
        return [Problem(argument, i, rule, fix) for i in indices if not is_whole(i, 0, len(self) - 1)]

    @classmethod
    def build(
        cls,
        devices: Sequence[Device],
        kinds: Sequence[Sequence[str]],
        peers: Sequence[Sequence[bool | None]] | None = None,
    ) -> "Topology":
        """From the kind of every link, and where it is known, whether peer access works there."""
        links = tuple(
            tuple(
                SELF if i == j else Link.of(kind, peer=peers[i][j] if peers else None, card=devices[i].name)
                for j, kind in enumerate(row)
            )
            for i, row in enumerate(kinds)
        )
        return cls(tuple(devices), links)

    @classmethod
    def uniform(cls, n: int, link: Link | str = SHARED) -> "Topology":
        """n equal devices with the same link between any two: virtual CPU devices by default.

        >>> import colonnade as cn
        >>> cn.Topology.uniform(3, link="NV4").link(0, 2).kind
        'NV4'
        """
        if not is_whole(n, 1):
            rule = "must be a whole number from 1 up"
            raise InvalidArgument("Topology.uniform()", [Problem("n", n, rule, "Try Topology.uniform(2)")])
        each = link if isinstance(link, Link) else Link.of(link)
        links = tuple(tuple(SELF if i == j else each for j in range(n)) for i in range(n))
        return cls(tuple(Device(f"device {i}") for i in range(n)), links)

    @classmethod
    def groups(cls, groups: Sequence[Sequence[int]], near: str = "PHB", far: str = "SYS") -> "Topology":
        """Devices that reach each other directly inside a group (`near`), and not between groups (`far`).

        >>> import colonnade as cn
        >>> cn.Topology.groups([[0, 1], [2, 3]]).link(3, 0).kind
        'SYS'
        """
        home = {device: at for at, group in enumerate(groups) for device in group}
        listed = [device for group in groups for device in group]
        if not listed or sorted(listed, key=str) != sorted(range(len(listed)), key=str):
            rule = "must name every device from 0 up exactly once"
            fix = "Try Topology.groups([[0, 1], [2, 3]])"
            raise InvalidArgument("Topology.groups()", [Problem("groups", groups, rule, fix)])
        n = range(len(listed))
        kinds = tuple(tuple("X" if i == j else near if home[i] == home[j] else far for j in n) for i in n)
        peers = tuple(tuple(home[i] == home[j] for j in n) for i in n)
        return cls.build([Device(f"device {i}") for i in n], kinds, peers)

    @classmethod
    def from_text(cls, text: str, p2p: str | None = None) -> "Topology":
        """Read what `nvidia-smi topo -m` prints, or what TensorFlow logs about peer access.

        Args:
            text: the output, as it was copied: colours, prompts, adapters and legend do not matter.
            p2p: what `nvidia-smi topo -p2p r` prints. Peer access is then what that says, and not
                what the kind of the link suggests. It may also stand in `text`, below the other, or
                lines of TensorFlow's log in its place.

        Example:
            >>> text = '''        A0   A1   CPU Affinity
            ... A0       X   PIX   0-7
            ... A1      PIX   X    0-7'''
            >>> import colonnade as cn
            >>> cn.Topology.from_text(text).link(0, 1).kind
            'PIX'
        """
        parsed = matrix.read(text, p2p)
        devices = [Device(name, numa=numa) for name, numa in zip(parsed.names, parsed.numa, strict=True)]
        return cls.build(devices, parsed.kinds, parsed.peers)

    def _repr_html_(self) -> str:
        """In a notebook: the devices, and the kinds of links between them."""
        # Only here: whoever reasons about machines shall not wait for what draws them.
        from colonnade.describe.html import network, table

        names = [device.name for device in self.devices]
        pairs = {
            (i, j): (f"{link.kind}, {_speed(link)}", 0.0 if math.isinf(link.bandwidth) else link.bandwidth)
            for i, row in enumerate(self.links)
            for j, link in enumerate(row)
            if i != j
        }
        kinds = [[name, *(link.kind for link in row)] for name, row in zip(names, self.links, strict=True)]
        return network(names, pairs) + table(["", *names], kinds)

    def to_json(self) -> str:
        """As JSON; the links are listed once each, and the matrix holds their positions."""
        different = list(
            dict.fromkeys(link for i, row in enumerate(self.links) for link in row if link != SELF)
        )
        places = [[None if link == SELF else different.index(link) for link in row] for row in self.links]
        plain = {
            "devices": [asdict(device) for device in self.devices],
            "kinds": [
                {**asdict(k), "bandwidth": None if math.isinf(k.bandwidth) else k.bandwidth}
                for k in different
            ],
            "links": places,
        }
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> "Topology":
        """The topology that `to_json` wrote."""
        try:
            plain = json.loads(text)
            kinds = [_link(kind) for kind in plain["kinds"]]
            links = tuple(tuple(SELF if at is None else kinds[at] for at in row) for row in plain["links"])
            return cls(tuple(Device(**device) for device in plain["devices"]), links)
        except InvalidArgument:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            rule = f"must be what Topology.to_json() writes ({type(error).__name__}: {error})"
            shown = text if not isinstance(text, str) or len(text) < 60 else text[:60] + "..."
            problem = Problem("text", shown, rule, "Write it again with to_json()")
            raise InvalidArgument("Topology.from_json()", [problem]) from None


def _speed(link: Link) -> str:
    return "shared memory" if math.isinf(link.bandwidth) else f"{link.bandwidth / 1e9:.3g} GB/s"


def _link(plain: dict[str, Any]) -> Link:
    unlimited = plain["bandwidth"] is None
    return Link(**{**plain, "bandwidth": math.inf if unlimited else plain["bandwidth"]})
