"""Checks of the self-test that move data: sums, copies and memory limits of the devices."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.describe.topology import Topology
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import short
from colonnade.hardware.probes import collective, limit
from colonnade.hardware.probes import copies as sending
from colonnade.hardware.probes.repeated import seconds_per_round
from colonnade.reason.transfers.reduction import reduction
from colonnade.run.move.reduce import Order, order_for, reduce, spread, star
from colonnade.run.selftest import children
from colonnade.run.selftest.verdict import Verdict

# Where a process of its own cannot be started beside this one, which has the cards already.
ALONE = "the cards let one process in at a time, and this one has them: start `colonnade selftest` by itself"
# What is copied between devices that share one memory, in bytes.
COPIED = 2**18


def placed_adds(devices: tuple[str, ...]) -> Verdict:
    """Sums along several orders, in several kinds of messages, against NumPy's."""
    n = len(devices)
    halves = [list(range(n))[: (n + 1) // 2], list(range(n))[(n + 1) // 2 :]]
    islands = Topology.groups([half for half in halves if half])
    orders = {"star": star(n), "islands": tuple(reduction(islands)), "this machine's": order_for(devices)}
    wrong = [
        f"{name}, messages of {bucket or 'one'}"
        for (name, order), bucket in itertools.product(orders.items(), (0, 2_000, 10**6))
        if not _adds_up(devices, order, bucket)
    ]
    said = f"orders {', '.join(orders)}; dense, sparse and missing gradients"
    return Verdict(not wrong, f"wrong: {'; '.join(wrong)}" if wrong else said)


def _adds_up(devices: tuple[str, ...], order: Order, bucket: int) -> bool:
    dense = [[collective.numbers(i, 300), collective.numbers(i + 99, 7)] for i in range(len(devices))]

    @tf.function(autograph=False)
    def added() -> Any:
        held = []
        for i, (device, row) in enumerate(zip(devices, dense, strict=True)):
            with tf.device(device):
                values = tf.reshape(tf.constant(row[0][:8]), [2, 4])
                sparse = tf.IndexedSlices(values, tf.constant([i, 0]), tf.constant([len(devices), 4]))
                lonely = tf.constant(row[1]) if i == 0 else None
                held.append([tf.constant(row[0]), sparse, None, lonely, tf.constant(row[1])])
        return [
            g if g is None else tf.convert_to_tensor(g)
            for g in reduce(held, devices, order, bucket_bytes=bucket)
        ]

    slices = np.zeros([len(devices), 4], "float32")
    for i, row in enumerate(dense):
        np.add.at(slices, [i, 0], row[0][:8].reshape(2, 4))
    sums = [np.sum([row[at] for row in dense], axis=0) for at in range(2)]
    expected = [sums[0], slices, None, dense[0][1], sums[1]]
    return all(
        (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b))
        for a, b in zip(added.get_concrete_function()(), expected, strict=True)
    )


def copies(devices: tuple[str, ...]) -> Verdict:
    """What each device reads of what each other one sent it; and how fast it came, between cards."""
    if len(devices) < 2:
        return Verdict(None, "it takes two devices")
    cards = hardware.are_cards(devices)
    size = sending.LARGE if cards else COPIED
    places = [hardware.names().index(device) for device in devices]
    links = hardware.topology().select(places) if cards else None
    wrong: list[str] = []
    speeds: dict[str, dict[str, Any]] = {}
    for (i, source), (j, target) in itertools.permutations(enumerate(devices), 2):
        pair = f"{short(source)} to {short(target)}"
        arrival = sending.send(_spread, source, target, size)
        if arrival.read_on != short(target):
            wrong.append(f"{pair} (read on {arrival.read_on or 'no device'})")
        elif not arrival.intact:
            wrong.append(f"{pair} (other bytes)")
        elif links is not None:
            link = links.link(i, j)
            label = link.kind if link.peer else f"{link.kind}, no peer access"
            speeds[pair] = {
                "GB/s": round(arrival.bandwidth / 1e9, 2),
                "link": label,
                "published GB/s": round(link.bandwidth / 1e9, 2),
            }
    pairs = f"{len(devices) * (len(devices) - 1)} pairs, {size / 2**20:g} MiB each"
    if wrong:
        return Verdict(False, f"{pairs}; did not arrive: {', '.join(wrong)}")
    if not speeds:
        return Verdict(True, f"{pairs}, summed up where they went; no bandwidth: these share one memory")
    measured = [speed["GB/s"] for speed in speeds.values()]
    summary = f"{pairs}, summed up where they went; {min(measured)} to {max(measured)} GB/s"
    return Verdict(True, summary, {"bandwidth": speeds})


def _spread(held: Any, source: str, target: str) -> Any:
    return spread([held], [source, target], star(2))[1][0]


def against_collective(devices: tuple[str, ...]) -> Verdict:
    """Placed adds against the sums of the cards' own library, which runs where it can do no harm."""
    cards = children.cards_of(devices) if hardware.are_cards(devices) else ()
    if len(cards) < max(2, len(devices)) or len({card.uuid for card in cards}) < len(devices):
        return Verdict(None, "it takes two cards; these devices have no collective library of their own")
    asked = children.sums(cards[: len(devices)])
    if asked is None:
        return Verdict(None, ALONE)
    answer, version = asked
    if answer.trouble:
        return Verdict(False, answer.trouble, words=answer.words)
    return judge_collective(devices, answer.said, version)


def judge_collective(devices: tuple[str, ...], said: Any, version: str) -> Verdict:
    """Compare checksums of sums, which are exact; the times are figures."""
    if not version:
        return Verdict(False, "the sums did not go through the cards' library")
    if [each["size"] for each in said] != list(collective.SIZES):
        return Verdict(False, f"it took {len(collective.SIZES)} sums, and {len(said)} came")
    wrong: list[str] = []
    figures: dict[str, Any] = {"version": version}
    for each in said:
        size = each["size"]
        tensors = []
        for i, device in enumerate(devices):
            with tf.device(device):
                tensors.append(tf.constant(collective.numbers(i, size)))
        add = tf.function(
            lambda *held: reduce([[x] for x in held], devices, order_for(devices))[0], autograph=False
        )
        own = collective.checksum(add(*tensors).numpy())
        # As the library was timed: many rounds in one call, with the sum on every device.
        took = seconds_per_round(collective.means_of(partial(_everywhere, devices), devices), tensors)
        figures[f"{size} numbers"] = {
            "placed adds, ms": round(1e3 * took, 2),
            "library, ms": round(1e3 * each["seconds"], 2),
        }
        if each["sums"] != [own] * len(devices):
            wrong.append(str(size))
    if wrong:
        return Verdict(False, f"different sums of {', '.join(wrong)} numbers", figures)
    return Verdict(True, f"the same sums as version {version}", figures)


def _everywhere(devices: Sequence[str], held: Sequence[Any]) -> list[Any]:
    order = order_for(devices)
    return [own[0] for own in spread(reduce([[x] for x in held], devices, order), devices, order)]


def memory_limit(devices: tuple[str, ...]) -> Verdict:
    """What a limited process takes of a card, as the driver sees it."""
    cards = children.cards_of(devices) if hardware.are_cards(devices) else ()
    if not cards:
        return Verdict(None, "there is no card; TensorFlow refuses a memory limit on CPU devices")
    if cards[0].mig or cards[0].memory is None:
        return Verdict(None, "the driver does not tell what is taken of this card")
    if not children.can_limit(cards[0]):
        free = 2 * limit.limit_for(cards[0])
        return Verdict(None, f"the card has too little free memory to try a limit: {free} MiB")
    answer = children.memory(cards[0])
    if answer is None:
        return Verdict(None, ALONE)
    if answer.trouble:
        return Verdict(False, answer.trouble, words=answer.words)
    measured = limit.MeasuredLimit(**answer.said)
    more = "more was refused" if measured.refused else "more was granted"
    summary = f"limit {measured.limit} MiB, taken {measured.used} MiB, {more}"
    return Verdict(measured.holds, summary, asdict(measured))
