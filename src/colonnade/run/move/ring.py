"""Sums gradients with the traffic of a ring: every bucket is added up on a device of its own.

Along one tree everything meets on device 0, which moves 2 log2(n) times the bytes of the gradients. Here
bucket b is added up on device b mod n, along a tree that leads there, and goes back along it. Over all
buckets each device moves 2 (n - 1) / n of the bytes, as in a ring, in log2(n) hops and not n - 1:

    bucket |  0            1            2            3
    adds   |  1->0 3->2    0->1 2->3    3->2 1->0    2->3 0->1
           |  2->0         3->1         0->2         1->3
    back   |  0->2 ...     1->3 ...     2->0 ...     3->1 ...

All of it are placed adds and copies. A bucket waits for its own gradients alone, so the first ones travel
while the backward pass goes on.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.describe.topology import Topology
from colonnade.reason.transfers.reduction import Round, reduction
from colonnade.run.move.buckets import Buckets, by_dtype, fits
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.move.reduce import Order, add, bucket_for, links_of, reduce, scope, spread
from colonnade.run.move.reductions import SMALL

# A bucket has no more bytes than this.
LARGEST = 4 * 2**20


def ring_sums(
    rows: Sequence[Sequence[Any]],
    devices: Sequence[str],
    *,
    everywhere: bool,
    largest: int = LARGEST,
    first: int = 0,
    made: Sequence[int] = (),
) -> list[list[Any]]:
    """The sums over devices of dense gradients, on every device, or on the first alone.

    Args:
        rows: for each device that has gradients, the first ones of `devices`, all of them: dense, each of one
            known shape and dtype on all.
        devices: those that get the sums.
        everywhere: whether all of them do.
        largest: how many bytes a bucket has at most.
        first: the number of the first bucket, for a profile.
        made: for each gradient when it is there, by some count.

    Returns:
        A list for each device that gets the sums.
    """
    links = links_of(devices)
    working, num_devices = links.select(range(len(rows))), len(rows)
    targets = devices if everywhere else devices[:1]
    sums: list[list[Any]] = [[None] * len(rows[0]) for _ in targets]
    for group in by_dtype(rows[0], range(len(rows[0])), made):
        buckets = _cut([rows[0][i] for i in group], num_devices, largest)
        held = [_packed(buckets, [row[i] for i in group], at) for row, at in zip(rows, devices, strict=False)]
        arrived: list[list[Any]] = [[] for _ in targets]
        for b, column in enumerate(zip(*held, strict=True)):
            root = b % num_devices
            total = added(column, devices, tuple(reduction(working, root)), root, first + b)
            copies = spread_from(root, total, devices, links) if everywhere else [total]
            for own, copy in zip(arrived, copies, strict=True):
                own.append(copy)
        first += len(buckets.pieces)
        for own, vectors, device in zip(sums, arrived, targets, strict=True):
            with tf.device(device):
                for i, total in zip(group, buckets.unpacked(vectors), strict=True):
                    own[i] = total
    return sums


def sums_everywhere(rows: Sequence[Sequence[Any]], devices: Sequence[str], order: Order) -> list[list[Any]]:
    """The sums of whatever devices hold, on every one of them: between cards in few messages.

    What can be cut into equal parts goes as above, if it is large; all else along the order, and back.
    """
    bucket = bucket_for(devices)
    even = [i for i, column in enumerate(zip(*rows, strict=True)) if fits(column)] if bucket else []
    if sum(num_bytes(rows[0][i]) for i in even) < SMALL * len(devices):
        even = []
    others = [[value for i, value in enumerate(row) if i not in even] for row in rows]
    sums = spread(reduce(others, devices, order, bucket_bytes=bucket), devices, order, bucket_bytes=bucket)
    if even:
        cut = ring_sums([[row[i] for i in even] for row in rows], devices, everywhere=True)
        for own, totals in zip(sums, cut, strict=True):
            for i, total in zip(even, totals, strict=True):
                own.insert(i, total)
    return sums


def owner_sums(
    rows: Sequence[Sequence[Any]],
    devices: Sequence[str],
    owners: Sequence[int],
    *,
    largest: int = LARGEST,
    made: Sequence[int] = (),
) -> list[Any]:
    """The sums over devices of dense gradients, each on its owner, or on device 0 if that has no row."""
    links = links_of(devices[: len(rows)])
    roots = [owner if owner < len(rows) else 0 for owner in owners]
    sums: list[Any] = [None] * len(owners)
    number = 0
    for root in sorted(set(roots)):
        rounds = tuple(reduction(links, root))
        for group in by_dtype(rows[0], [i for i, at in enumerate(roots) if at == root], made):
            buckets = _cut([rows[0][i] for i in group], 1, largest)
            held = [
                _packed(buckets, [row[i] for i in group], at) for row, at in zip(rows, devices, strict=False)
            ]
            totals = [
                added(column, devices, rounds, root, number + b)
                for b, column in enumerate(zip(*held, strict=True))
            ]
            number += len(totals)
            with tf.device(devices[root]):
                for i, total in zip(group, buckets.unpacked(totals), strict=True):
                    sums[i] = total
    return sums


def ring_traffic(size: int, devices: Sequence[str], *, everywhere: bool) -> dict[tuple[int, int], float]:
    """Bytes that `ring_sums` moves from device to device, for so many bytes of gradients."""
    links, moved = links_of(devices), Counter[tuple[int, int]]()
    for root in range(len(devices)):
        for source, target in (pair for pairs in reduction(links, root) for pair in pairs):
            moved[source, target] += 1
            moved[target, source] += everywhere
        moved[root, 0] += not everywhere and root > 0
    return {pair: times * size / len(devices) for pair, times in moved.items() if times}


def owner_traffic(sizes: Mapping[int, int], devices: Sequence[str]) -> dict[tuple[int, int], float]:
    """Bytes that `owner_sums` moves from device to device; `sizes` are those of each owner."""
    links, moved = links_of(devices), Counter[tuple[int, int]]()
    for root, size in sizes.items():
        for pair in (pair for pairs in reduction(links, root) for pair in pairs):
            moved[pair] += size
    return {pair: float(size) for pair, size in moved.items()}


def added(
    column: Sequence[Any], devices: Sequence[str], rounds: Sequence[Round], root: int, number: int
) -> Any:
    """The sum of what devices hold, on `root`, to which the rounds lead; `number` is told to a profile."""
    held = list(column)
    for links in rounds:
        for source, target in links:
            name = scope(number, [devices[source]], devices[target], num_bytes(column[0]))
            with tf.device(devices[target]), tf.name_scope(name):
                held[target] = add([held[target], held[source]])
    return held[root]


def spread_from(root: int, value: Any, devices: Sequence[str], links: Topology) -> list[Any]:
    """What one device holds, copied to all of them along the tree that leads to it, backwards."""
    held = {root: value}
    for pairs in reversed(list(reduction(links, root))):
        for source, target in pairs:
            with tf.device(devices[source]):
                held[source] = tf.identity(held[target])
    return [held[i] for i in range(len(devices))]


def _cut(tensors: Sequence[Any], num_devices: int, largest: int) -> Buckets:
    """As many buckets for each device, so that each moves the same bytes."""
    size = sum(num_bytes(tensor) for tensor in tensors)
    each = -(-size // (num_devices * largest))
    return Buckets(tuple(tuple(tensor.shape.as_list()) for tensor in tensors), num_devices * each)


def _packed(buckets: Buckets, tensors: Sequence[Any], device: str) -> list[Any]:
    with tf.device(device):
        return buckets.packed(tensors)
