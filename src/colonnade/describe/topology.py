"""`cn.Topology`: a machine as plain data, its devices and the link between each pair of them."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, groupby
from typing import Any

from colonnade.describe import fields, matrix, speeds
from colonnade.describe.link import DEVICE_RULES, SELF, SHARED
from colonnade.describe.link import Device as Device
from colonnade.describe.link import Link as Link
from colonnade.describe.machines import MachineLinks, adapter_bandwidth
from colonnade.errors import InvalidArgument, Problem, check, is_whole

VERSION = 1

# Up to this many devices `best` looks at every choice; beyond, it grows one from every device.
EXACT = 16


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
    links: Sequence[Sequence[Link]]
    adapters: int = 0  # to a network, of each machine, as far as they are known

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        if isinstance(self.links, MachineLinks):
            object.__setattr__(self, "adapters", self.links.adapters)
            return
        object.__setattr__(self, "links", tuple(map(tuple, self.links)))
        shape, n = [len(row) for row in self.links], len(self.devices)
        if n == 0 or shape != [n] * n:
            rule = f"must have one row and one column for each of {n} devices, and at least one device"
            raise InvalidArgument(
                "Topology", [Problem("links", shape, rule, "Use links[i][j], also for i == j")]
            )

    def __len__(self) -> int:
        return len(self.devices)

    def __hash__(self) -> int:
        """Kept, because it is asked for often and thousands of devices take their time."""
        if "_hash" not in self.__dict__:
            object.__setattr__(self, "_hash", hash((self.devices, self.links, self.adapters)))
        return int(self.__dict__["_hash"])

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
        if isinstance(self.links, MachineLinks):
            runs = [(m, tuple(run)) for m, run in groupby(chosen, self.links.home.__getitem__)]
            if (
                len({m for m, _ in runs}) == len(runs) > 1
            ):  # machine by machine, so that no table of all is needed
                return _of_machines(self.links, runs)
        links = tuple(
            tuple(SELF if a == b else SHARED if i == j else self.links[i][j] for b, j in enumerate(chosen))
            for a, i in enumerate(chosen)
        )
        return Topology(tuple(self.devices[i] for i in chosen), links)

    @property
    def boxes(self) -> "tuple[Topology, ...]":
        """The machines, in the order of their devices."""
        return self.links.boxes if isinstance(self.links, MachineLinks) else (self,)

    @property
    def network(self) -> Link | None:
        """What joins the machines; its bandwidth is that of one of `adapters`, of which a copy takes one."""
        return self.links.network if isinstance(self.links, MachineLinks) else None

    def machine_of(self, device: int) -> int:
        """The position of the machine that a device is in."""
        return self.links.home[device] if isinstance(self.links, MachineLinks) else 0

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
    def machines(
        cls,
        box: "Topology | Sequence[Topology]",
        count: int | None = None,
        *,
        network: str | float = "100Gb",
        adapters: int | None = None,
        latency: float | None = None,
    ) -> "Topology":
        """Machines joined by a network: `count` of one kind, or those of a list.

        Args:
            box: one machine, or all of them.
            count: how many, where `box` is one.
            network: the rate of one adapter, such as `100Gb`, or bytes per second.
            adapters: how many a machine has; by default those that `nvidia-smi topo -m` listed, or one.
            latency: seconds until the first byte arrives.

        Example:
            >>> import colonnade as cn
            >>> two = cn.Topology.machines(cn.Topology.uniform(4, "NV4"), 2, network="200Gb")
            >>> len(two), two.link(3, 4).kind, two.link(3, 4).bandwidth / 1e9
            (8, 'NET', 24.0)
        """
        boxes = [box] * count if isinstance(box, Topology) and is_whole(count, 1, 2**20) else box
        whole = isinstance(boxes, list | tuple) and bool(boxes)
        if not whole or not all(isinstance(one, Topology) and one.network is None for one in boxes):  # type: ignore[union-attr]
            rule = "must be one machine with a count from 1 up, or a list of machines"
            problem = Problem("box", fields.shown(box), rule, "Try Topology.machines(box, 4)")
            raise InvalidArgument("Topology.machines()", [problem])
        if adapters is not None and not is_whole(adapters, 1, 2**20):
            problem = Problem("adapters", adapters, "must be a whole number from 1 up", "Leave it out")
            raise InvalidArgument("Topology.machines()", [problem])
        known = list(boxes)  # type: ignore[arg-type]
        number = adapters or min(one.adapters for one in known) or 1
        usual = speeds.latency("NET", True)
        link = Link("NET", adapter_bandwidth(network), usual if latency is None else latency, True)
        devices = tuple(device for one in known for device in one.devices)
        return cls(devices, MachineLinks(known, link, number))

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
        return replace(cls.build(devices, parsed.kinds, parsed.peers), adapters=parsed.adapters)

    def _repr_html_(self) -> str:
        """In a notebook: the devices, and the kinds of links between them."""
        # Only here: whoever reasons about machines shall not wait for what draws them.
        from colonnade.describe.pictures.machine_map import machine_map

        return machine_map(self)

    def to_json(self) -> str:
        """As JSON; the links are listed once each, and the matrix holds their positions."""
        if isinstance(self.links, MachineLinks):
            kinds = list(dict.fromkeys(self.boxes))
            return json.dumps(
                {
                    "version": VERSION,
                    "boxes": [json.loads(box.to_json()) for box in kinds],
                    "machines": [kinds.index(box) for box in self.boxes],
                    "network": _plain(self.links.network),
                    "adapters": self.links.adapters,
                }
            )
        different = list(
            dict.fromkeys(link for i, row in enumerate(self.links) for link in row if link != SELF)
        )
        places = [[None if link == SELF else different.index(link) for link in row] for row in self.links]
        plain = {
            "version": VERSION,
            "adapters": self.adapters,
            "devices": [asdict(device) for device in self.devices],
            "kinds": [_plain(kind) for kind in different],
            "links": places,
        }
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> "Topology":
        """The topology that `to_json` wrote; all that is wrong with a text comes in one error."""
        plain = fields.loaded(text, WHERE, VERSION)
        return _machines(plain) if "boxes" in plain else _box(plain, "")


def _of_machines(links: MachineLinks, runs: Sequence[tuple[int, tuple[int, ...]]]) -> Topology:
    """Parts of some machines."""
    parts: dict[tuple[Topology, tuple[int, ...]], Topology] = {}
    boxes = []
    for machine, run in runs:
        local = tuple(device - links.starts[machine] for device in run)
        key = (links.boxes[machine], local)
        if key not in parts:
            parts[key] = key[0].select(local)
        boxes.append(parts[key])
    return Topology(
        tuple(d for box in boxes for d in box.devices), MachineLinks(boxes, links.network, links.adapters)
    )


WHERE = "Topology.from_json()"
AGAIN = "Write it again with to_json()"


def _box(plain: Any, at: str) -> Topology:
    """One machine from plain data."""
    if not isinstance(plain, dict):
        raise InvalidArgument(WHERE, [Problem(at or "text", fields.shown(plain), "must be an object", AGAIN)])
    plain = {name: value for name, value in plain.items() if not at or name != "version"}
    unknown = plain.keys() - {"devices", "kinds", "links", "adapters"}
    wrong = [Problem(f"{at}{name}", fields.shown(plain[name]), "is no field here", AGAIN) for name in unknown]
    lists = {name: fields.items(plain, name) for name in ("devices", "kinds", "links")}
    wrong += [problem for _, problems in lists.values() for problem in problems]
    devices, kinds, rows = (lists[name][0] for name in ("devices", "kinds", "links"))
    for i, device in enumerate(devices):
        wrong += fields.strangers(Device, device, f"{at}devices[{i}].")
        wrong += fields.amiss(DEVICE_RULES, device if isinstance(device, dict) else {}, f"{at}devices[{i}].")
    for i, kind in enumerate(kinds):
        wrong += fields.strangers(Link, kind, f"{at}kinds[{i}].")
    wrong += _place_problems(rows, len(devices), len(kinds), at)
    if not is_whole(plain.get("adapters", 0), 0, 2**20):
        rule = "must be a whole number from 0 up"
        wrong.append(Problem(f"{at}adapters", fields.shown(plain["adapters"]), rule, "Leave it out"))
    check(WHERE, wrong)
    known = [_link(kind) for kind in kinds]
    links = tuple(tuple(SELF if place is None else known[place] for place in row) for row in rows)
    return Topology(tuple(Device(**device) for device in devices), links, plain.get("adapters", 0))


def _place_problems(rows: list[Any], num_devices: int, num_kinds: int, at: str) -> Iterable[Problem]:
    if (
        not num_devices
        or len(rows) != num_devices
        or any(not isinstance(row, list) or len(row) != num_devices for row in rows)
    ):
        rule = (
            f"must have a row and a column for each of {num_devices} devices, at least one: a link is missing"
        )
        yield Problem(f"{at}links", fields.shown(rows), rule, AGAIN)
        return
    for i, row in enumerate(rows):
        for j, place in enumerate(row):
            if place is None and i != j:
                rule = "is missing: there is no way between these devices"
                yield Problem(f"{at}links[{i}][{j}]", None, rule, "Name the position of a link in kinds")
            elif place is not None and not is_whole(place, 0, num_kinds - 1):
                rule = f"must be the position of one of {num_kinds} kinds"
                yield Problem(f"{at}links[{i}][{j}]", fields.shown(place), rule, AGAIN)


def _machines(plain: dict[str, Any]) -> Topology:
    wrong = [
        Problem(name, fields.shown(plain[name]), "is no field here", AGAIN)
        for name in plain.keys() - {"boxes", "machines", "network", "adapters"}
    ]
    kinds, no_kinds = fields.items(plain, "boxes")
    places, no_places = fields.items(plain, "machines")
    wrong += [*no_kinds, *no_places, *fields.strangers(Link, plain.get("network"), "network.")]
    if not places or not all(is_whole(place, 0, len(kinds) - 1) for place in places):
        rule = f"must be positions of the {len(kinds)} boxes, at least one"
        wrong.append(Problem("machines", fields.shown(places), rule, AGAIN))
    # Without a number, the network is that of all adapters of a machine together.
    if not is_whole(plain.get("adapters", 1), 1, 2**20):
        rule = "must be a whole number from 1 up"
        wrong.append(Problem("adapters", fields.shown(plain["adapters"]), rule, "Leave it out"))
    check(WHERE, wrong)
    boxes = [_box(kind, f"boxes[{i}].") for i, kind in enumerate(kinds)]
    known = [boxes[place] for place in places]
    links = MachineLinks(known, _link(plain["network"]), plain.get("adapters", 1))
    return Topology(tuple(device for box in known for device in box.devices), links)


def _plain(link: Link) -> dict[str, Any]:
    """As JSON takes it, which has no word for what has no end."""
    return {**asdict(link), "bandwidth": None if math.isinf(link.bandwidth) else link.bandwidth}


def _link(plain: dict[str, Any]) -> Link:
    unlimited = plain["bandwidth"] is None
    return Link(**{**plain, "bandwidth": math.inf if unlimited else plain["bandwidth"]})
