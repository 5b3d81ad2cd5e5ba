"""Measures this machine for plans: the rate of a large matrix product, and copies between every two cards.

Run as a program, under a watchdog: `python -m colonnade.hardware.probes.measure` prints as JSON what it
measured, which takes the place of the published figures in the topology.
"""

import itertools
import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from colonnade.describe.link import Device, Link
from colonnade.describe.topology import Topology
from colonnade.errors import ColonnadeError
from colonnade.hardware.cards import Machine
from colonnade.hardware.cores import cores
from colonnade.hardware.probes.watchdog import ask

PATIENCE = 300  # seconds
SIDE = 2048  # of the matrices; large enough that starting the product costs nothing
ROUNDS = 5


@dataclass(frozen=True)
class Measured:
    """What a machine reached; cards by their indices."""

    flops: tuple[float, ...]  # FLOP/s of each device
    cards: tuple[int, ...] = ()  # the index of each, where they are cards
    # Source, target, bytes per second of a large copy, seconds of a small one.
    copies: tuple[tuple[int, int, float, float], ...] = ()


def measured(machine: Machine) -> Topology:
    """The topology of this machine with measured figures; virtual devices share its cores."""
    answer = ask("colonnade.hardware.probes.measure", seconds=PATIENCE)
    if answer.trouble:
        said = ": ".join(filter(None, (answer.trouble, answer.words)))
        raise ColonnadeError(f"this machine could not be measured: {said}")
    return put_into(
        machine, Measured(**{name: tuple(map(_frozen, each)) for name, each in answer.said.items()})
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def put_into(machine: Machine, figures: Measured) -> Topology:
    """Measured figures in place of published ones."""
    topology = machine.topology
    if not machine.cards:
        return Topology(
            (Device("CPU:0", achieved=figures.flops[0], cores=cores()),), topology.select([0]).links
        )
    place = {card.index: at for at, card in enumerate(machine.cards)}
    links = [list(row) for row in topology.links]
    for source, target, bandwidth, latency in figures.copies:
        known: Link = links[place[source]][place[target]]
        # What a small copy takes is mostly what a call takes: the latency of the link is at most that.
        better = replace(known, bandwidth=bandwidth, latency=min(latency, known.latency))
        links[place[source]][place[target]] = better
    rates = {place[card]: rate for card, rate in zip(figures.cards, figures.flops, strict=True)}
    devices = [replace(d, achieved=rates.get(at, d.achieved)) for at, d in enumerate(topology.devices)]
    return Topology(tuple(devices), links, topology.adapters)


def main() -> None:
    """In the process of its own: measure, and print it."""
    import tensorflow as tf

    from colonnade.hardware import devices as hardware
    from colonnade.hardware.probes import copies

    cards = hardware.visible_cards()
    names = hardware.setup(growth=True) if cards else hardware.setup()
    rates = [_rate(tf, name) for name in names]
    moved = []
    indices = tuple(card.index for card in cards)
    if len(cards) > 1:
        for (i, source), (j, target) in itertools.permutations(zip(indices, names, strict=True), 2):
            large = copies.send(copies.to_target, source, target, copies.LARGE)
            small = copies.send(copies.to_target, source, target, copies.ROW)
            moved.append((i, j, large.bandwidth, copies.ROW / small.bandwidth))
    print(json.dumps(asdict(Measured(tuple(rates), indices, tuple(moved)))))


def _rate(tf: Any, device: str) -> float:
    """FLOP/s of the fastest of some products."""
    with tf.device(device):
        one = tf.random.stateless_normal([SIDE, SIDE], seed=[1, 2])

        @tf.function(autograph=False)
        def product(a: Any) -> Any:
            return tf.reduce_sum(a @ a)

        product(one).numpy()
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            product(one).numpy()
            times.append(time.perf_counter() - begin)
    return float(2 * SIDE**3 / min(times))


if __name__ == "__main__":
    main()
