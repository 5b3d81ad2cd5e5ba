"""Which devices a layout takes, and who does what: the order in which devices stand in a plan.

What a layout costs depends on it wherever links or devices differ: layers split over devices exchange
most, so these should be joined best; a replica is as fast as its slowest device. Of few devices orders are
improved one exchange of two devices at a time, from several starts, by an estimate of the step; of four or
fewer all orders are tried. Of many devices, over machines, each machine puts its devices that are joined best
side by side.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, pairwise, permutations

from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.runtime import Runtime
from colonnade.reason.simulator.simulate import simulate
from colonnade.reason.transfers.cost import all_reduce, copy, group_of

# Up to so many devices in a machine, all orders of all choices are tried.
ALL = 4
# Up to so many devices in all, orders are searched for.
SEARCHED = 16
# Passes over all pairs of devices; each ends with the best exchange of two.
PASSES = 8

# Orders are told apart by a simulation that are estimated to be as near as this to the best; none is drawn.
NEAR, QUIET = 1.25, Runtime("without jitter")

Order = tuple[int, ...]
_NUMBERED = re.compile(r"^([A-Z]+:|device )[0-9]+$")


@lru_cache(maxsize=64)
def known_topology(topology: Topology) -> Topology:
    """The first one that is equal: thousands of questions about it are then answered without a comparison."""
    return topology


@lru_cache(maxsize=64)
def known_workload(workload: Workload) -> Workload:
    """The first one that is equal."""
    return workload


@lru_cache(maxsize=4096)
def arranged(topology: Topology, workload: Workload, data: int, stage: int, width: int) -> Order:
    """Devices for a layout: width by width inside a stage, stage by stage inside a replica.

    >>> import colonnade as cn
    >>> pairs = cn.Topology.groups([[0, 2], [1, 3]])
    >>> arranged(pairs, cn.Workload.of([("a", 0.0, 8)], batch=8), 2, 1, 1)
    (0, 2)
    """
    count = data * stage * width
    speeds = _speeds(topology, workload)
    if count == 1:
        return (max(range(len(topology)), key=lambda d: speeds[d]),)
    if _alike(topology, speeds):
        return tuple(range(count))
    if topology.network is not None or len(topology) > SEARCHED:
        return _by_machine(topology, speeds)[:count]
    cost = _Cost(topology, workload, data, stage, width, speeds)
    if len(topology) <= ALL:
        orders = sorted(permutations(range(len(topology)), count), key=cost)
        return _simulated(topology, workload, data, width, orders, cost) if stage == 1 else orders[0]
    return min(
        (_improved(start, len(topology), cost) for start in _starts(topology, count, speeds)), key=cost
    )


@lru_cache(maxsize=256)
def kinds(topology: Topology) -> tuple[Device, ...]:
    """The devices, without what does not matter for their speed: which processor they are next to, and the
    number in names that say no more than that."""
    plain = (replace(d, numa=None, name=_NUMBERED.sub(r"\g<1>0", d.name)) for d in topology.devices)
    return tuple(plain)


@lru_cache(maxsize=256)
def only_kind(topology: Topology) -> Device | None:
    """Of which kind all devices are; None if they differ."""
    different = set(kinds(topology))
    return next(iter(different)) if len(different) == 1 else None


@lru_cache(maxsize=256)
def _speeds(topology: Topology, workload: Workload) -> tuple[float, ...]:
    """Examples per second of every device, at a batch that all of them share."""
    rows = max(1.0, workload.batch / len(topology))
    devices = kinds(topology)
    known = {device: layer_time.total(workload, device, rows) for device in dict.fromkeys(devices)}
    return tuple(rows / known[device] if known[device] else 1.0 for device in devices)


@lru_cache(maxsize=256)
def _alike(topology: Topology, speeds: tuple[float, ...]) -> bool:
    """Whether the order does not matter: equal devices, and inside machines equal links."""
    if len(set(speeds)) > 1 or len({device.memory for device in topology.devices}) > 1:
        return False
    boxes = dict.fromkeys(topology.boxes)
    return all(
        len({link for i, row in enumerate(box.links) for j, link in enumerate(row) if i != j}) <= 1
        for box in boxes
    )


@lru_cache(maxsize=256)
def _by_machine(topology: Topology, speeds: tuple[float, ...]) -> Order:
    """Machine by machine, the fastest first; inside of one, devices that are joined best side by side."""
    starts = getattr(topology.links, "starts", (0,))
    known: dict[tuple[Topology, tuple[float, ...]], Order] = {}
    listed = []
    for machine, box in enumerate(topology.boxes):
        own = speeds[starts[machine] : starts[machine] + len(box)]
        if (box, own) not in known:
            known[box, own] = _side_by_side(box, own)
        listed.append((-min(own), machine, known[box, own]))
    return tuple(starts[machine] + device for _, machine, order in sorted(listed) for device in order)


def _side_by_side(box: Topology, speeds: Sequence[float]) -> Order:
    """Pairs that are joined best, then pairs of pairs, and so on: as a tree of islands."""
    islands: list[list[int]] = [[d] for d in sorted(range(len(box)), key=lambda d: (-speeds[d], d))]
    while len(islands) > 1:
        paired: list[list[int]] = []
        while len(islands) > 1:
            first = islands.pop(0)

            def nearness(other: list[int], first: list[int] = first) -> tuple[float, int]:
                joined = min(
                    min(box.links[i][j].bandwidth, box.links[j][i].bandwidth) for i in first for j in other
                )
                return joined, -min(other)

            best = max(islands, key=nearness)
            islands.remove(best)
            paired.append(first + best)
        islands = paired + islands
    return tuple(islands[0])


def _starts(topology: Topology, count: int, speeds: tuple[float, ...]) -> Iterator[Order]:
    """Choices of devices, in orders that lie near a good one."""
    side_by_side = _side_by_side(topology, speeds)
    chosen: list[Iterable[int]] = [topology.best(count)]
    if len(set(speeds)) > 1:
        chosen.append(sorted(range(len(topology)), key=lambda d: (-speeds[d], d))[:count])
    seen = set()
    for one in chosen:
        members = set(one)
        for order in (tuple(sorted(members)), tuple(d for d in side_by_side if d in members)):
            if order not in seen:
                seen.add(order)
                yield order


def _simulated(
    topology: Topology, workload: Workload, data: int, width: int, orders: Sequence[Order], cost: "_Cost"
) -> Order:
    """Of orders that are nearly the best, the one whose reduction takes the best way."""
    near = [order for order in orders if cost(order) <= NEAR * cost(orders[0])]

    def step(order: Order) -> float:
        plan = Plan(batch=workload.batch, data=data, width=width, devices=order)
        return simulate(topology, workload, plan, QUIET, events=False).step

    return min(near, key=step)


def _improved(start: Order, num_devices: int, cost: "_Cost") -> Order:
    """Exchange the two devices that gain most, one of which may be idle, until none do."""
    best, least = start, cost(start)
    for _ in range(PASSES):
        found = min(_exchanged(best, num_devices), key=cost, default=best)
        if cost(found) >= least * (1 - 1e-9):
            return best
        best, least = found, cost(found)
    return best


def _exchanged(order: Order, num_devices: int) -> Iterator[Order]:
    for i, j in combinations(range(len(order)), 2):
        changed = list(order)
        changed[i], changed[j] = changed[j], changed[i]
        yield tuple(changed)
    for i in range(len(order)):
        for idle in set(range(num_devices)) - set(order):
            yield (*order[:i], idle, *order[i + 1 :])


class _Cost:
    """Seconds of a step by what changes with the order: the slowest replica, and what goes over links."""

    def __init__(
        self,
        topology: Topology,
        workload: Workload,
        data: int,
        stage: int,
        width: int,
        speeds: Sequence[float],
    ) -> None:
        self.topology, self.speeds = topology, speeds
        self.data, self.stage, self.width = data, stage, width
        self.rows = workload.batch / data
        wide = [layer for layer in workload.layers if layer.exchanged] if width > 1 else []
        self.exchanged = sum(layer.exchanged for layer in wide) * self.rows
        self.exchanges = sum(layer.exchanges for layer in wide)
        self.handed = max((layer.output for layer in workload.layers), default=0) * self.rows
        self.reduced = workload.gradient_bytes / (stage * (width if wide else 1))
        self.known: dict[Order, float] = {}
        self.groups: dict[tuple[str, Order], float] = {}

    def __call__(self, order: Order) -> float:
        if order not in self.known:
            self.known[order] = self._seconds(order)
        return self.known[order]

    def _seconds(self, order: Order) -> float:
        data, stage, width = self.data, self.stage, self.width
        parts = [order[at : at + width] for at in range(0, len(order), width)]  # replica by replica
        replicas = [parts[at : at + stage] for at in range(0, len(parts), stage)]
        speeds = [[width * min(self.speeds[d] for d in part) for part in replica] for replica in replicas]
        rates = [sum(each) for each in speeds]
        took = self.rows / min(rates)
        if width > 1 and self.exchanged:
            took += 2 * max(  # a faster stage has more of the layers
                self._exchange(part) * speed / rate
                for replica, each, rate in zip(replicas, speeds, rates, strict=True)
                for part, speed in zip(replica, each, strict=True)
            )
        if stage > 1:
            took += 2 * max(
                copy(self.topology.links[a[w]][b[w]], self.handed / width)
                for replica in replicas
                for a, b in pairwise(replica)
                for w in range(width)
            )
        if data > 1:
            took += max(
                self._reduction(tuple(replica[s][w] for replica in replicas))
                for s in range(stage)
                for w in range(width)
            )
        return took

    def _exchange(self, members: Order) -> float:
        key = "exchange", tuple(sorted(members))
        if key not in self.groups:
            each = self.exchanged / self.exchanges
            group = group_of(self.topology, key[1])
            self.groups[key] = self.exchanges * all_reduce(group, each, "best")
        return self.groups[key]

    def _reduction(self, members: Order) -> float:
        key = "reduction", tuple(sorted(members))
        if key not in self.groups:
            self.groups[key] = all_reduce(group_of(self.topology, key[1]), self.reduced, "best")
        return self.groups[key]
