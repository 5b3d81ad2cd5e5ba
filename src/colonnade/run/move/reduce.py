"""Sums gradients over devices (all-reduce): along a given order of pairs, in buckets, as placed adds.

An order is a sequence of rounds, each a tuple of (source, target) positions: in a round every source
sends its partial sum to its target, which adds it to its own. After the last round device 0 holds
the sum. Two orders for four devices:

    star    (1->0, 2->0, 3->0)         all into one: best where a copy costs nothing
    tree    (1->0, 3->2), (2->0)       neighbours first: best where links differ
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.describe.topology import Topology
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import short
from colonnade.reason.transfers.reduction import Round, reduction
from colonnade.run.move.num_bytes import num_bytes

Order = tuple[Round, ...]


def star(num_devices: int) -> Order:
    """Everything into device 0 at once.

    >>> star(3)
    (((1, 0), (2, 0)),)
    """
    return (tuple((source, 0) for source in range(1, num_devices)),) if num_devices > 1 else ()


def order_for(devices: Sequence[str]) -> Order:
    """The order that the links between the devices ask for; a star where copies cost nothing."""
    return tree_for(devices) if hardware.are_cards(devices) else star(len(devices))


def tree_for(devices: Sequence[str]) -> Order:
    """Two by two, the fastest links first."""
    return tuple(reduction(links_of(devices)))


def links_of(devices: Sequence[str]) -> Topology:
    """The links between these devices."""
    positions = [hardware.names().index(device) for device in devices]
    return hardware.topology().select(positions)


def bucket_for(devices: Sequence[str]) -> int:
    """How large messages should be: joining gradients costs a copy, which only pays on links."""
    return 4 * 2**20 if len(devices) > 1 and hardware.are_cards(devices) else 0


def reduce(
    gradients: Sequence[Sequence[Any]], devices: Sequence[str], order: Order, *, bucket_bytes: int = 0
) -> list[Any]:
    """The sum over devices of each gradient, on the first device.

    Args:
        gradients: a list per device, in the same order on each: tensors, `tf.IndexedSlices` or None.
        devices: where each list lives.
        order: rounds of (source, target) positions.
        bucket_bytes: dense gradients are joined into messages of about this size, so that many small
            ones cross a link as a few large ones; 0 sends each by itself.

    Sparse gradients stay sparse: their slices are put one after the other. A gradient that is None on
    every device stays None.
    """
    messages = _messages(gradients, bucket_bytes)
    held = [
        [_packed([row[i] for i in message], device) for message in messages]
        for row, device in zip(gradients, devices, strict=True)
    ]
    for links in order:
        for target, sources in _by_target(links).items():
            columns = zip(*(held[d] for d in (target, *sources)), strict=True)
            summed = []
            for number, column in enumerate(columns):
                sent = sum(_size(gradient)[0] for gradient in column[1:])
                name = scope(number, [devices[source] for source in sources], devices[target], sent)
                with tf.device(devices[target]), tf.name_scope(name):
                    summed.append(add(column))
            held[target] = summed
    with tf.device(devices[0]):
        return _in_place(held[0], messages, gradients[0])


def scope(bucket: int, sources: Sequence[str], target: str, sent: int) -> str:
    """The name scope of a message's sum, by which a profile knows it.

    >>> scope(3, ["/device:CPU:1", "/device:CPU:2"], "/device:CPU:0", 64)
    'reduction_3_from_CPU_1.CPU_2_to_CPU_0_bytes_64'
    """
    names = ".".join(_word(source) for source in sources)
    return f"reduction_{bucket}_from_{names}_to_{_word(target)}_bytes_{sent}"


def _word(device: str) -> str:
    return short(device).replace(":", "_").replace("/", "_")


def spread(
    values: Sequence[Any], devices: Sequence[str], order: Order, *, bucket_bytes: int = 0
) -> list[list[Any]]:
    """What device 0 holds, copied to every device, along the order backwards, in messages as of `reduce`."""
    messages = _messages([values], bucket_bytes)
    held: dict[int, list[Any]] = {
        0: [_packed([values[i] for i in message], devices[0]) for message in messages]
    }
    for links in reversed(order):
        for source, target in links:
            with tf.device(devices[source]):
                held[source] = [value if value is None else tf.identity(value) for value in held[target]]
    copies = [list(values)]
    for position in range(1, len(devices)):
        with tf.device(devices[position]):
            copies.append(_in_place(held[position], messages, values))
    return copies


@dataclass(frozen=True)
class Traffic:
    """Bytes that a reduction moves over each link (source, target), known before it runs.

    `exact` is False where a sparse gradient has a number of rows that only the run tells; those
    rows are not counted.
    """

    links: dict[tuple[int, int], int]
    exact: bool = True

    @property
    def total(self) -> int:
        return sum(self.links.values())


def traffic(gradients: Sequence[Sequence[Any]], order: Order) -> Traffic:
    """Count what `reduce` moves: the gradients may be tensors or slices, or specs of them."""
    held = [[_size(gradient) for gradient in row] for row in gradients]
    links: dict[tuple[int, int], int] = {}
    for pairs in order:
        moved = {source: held[source] for source, _ in pairs}
        for source, target in pairs:
            links[source, target] = sum(size for size, _ in moved[source])
            held[target] = [_together(a, b) for a, b in zip(held[target], moved[source], strict=True)]
    known = all(_is_known(gradient) for row in gradients for gradient in row)
    return Traffic(links, exact=known)


def _by_target(links: Round) -> dict[int, list[int]]:
    grouped: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        grouped[target].append(source)
    return grouped


def _messages(gradients: Sequence[Sequence[Any]], bucket_bytes: int) -> list[list[int]]:
    """Which gradients travel together: dense ones of one dtype and static shape, up to a size."""
    messages: list[list[int]] = []
    open_at: dict[Any, tuple[int, int]] = {}  # by dtype: position of the message being filled, its size
    for i, column in enumerate(zip(*gradients, strict=True)):
        if not bucket_bytes or not all(
            isinstance(g, tf.Tensor) and g.shape.is_fully_defined() for g in column
        ):
            messages.append([i])
            continue
        dtype, size = column[0].dtype, _size(column[0])[0]
        at, filled = open_at.get(dtype, (None, 0))
        if at is None or filled + size > bucket_bytes:
            at, filled = len(messages), 0
            messages.append([])
        messages[at].append(i)
        open_at[dtype] = at, filled + size
    return messages


def _packed(gradients: Sequence[Any], device: str) -> Any:
    if len(gradients) == 1:
        return gradients[0]
    with tf.device(device):
        return tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)


def _unpacked(total: Any, like: Sequence[Any]) -> list[Any]:
    if len(like) == 1:
        return [total]
    parts = tf.split(total, [gradient.shape.num_elements() for gradient in like])
    return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, like, strict=True)]


def _in_place(totals: Sequence[Any], messages: Sequence[Sequence[int]], like: Sequence[Any]) -> list[Any]:
    """What the messages hold, each at its place."""
    result: dict[int, Any] = {}
    for message, total in zip(messages, totals, strict=True):
        result.update(zip(message, _unpacked(total, [like[i] for i in message]), strict=True))
    return [result[i] for i in range(len(like))]


def add(gradients: Iterable[Any]) -> Any:
    """The sum of gradients on one device: slices one after the other; none at all counts nothing."""
    present = [gradient for gradient in gradients if gradient is not None]
    if len(present) <= 1:
        return present[0] if present else None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in present):
        values = tf.concat([gradient.values for gradient in present], axis=0)
        indices = tf.concat([gradient.indices for gradient in present], axis=0)
        return tf.IndexedSlices(values, indices, present[0].dense_shape)
    total, *others = [tf.convert_to_tensor(gradient) for gradient in present]
    for other in others:
        # Not add_n: it begins with whichever input's memory is free by then, so that the last bit of a
        # sum of three depends on timing. Nor bare sums, of which TensorFlow's optimiser makes add_n.
        total = tf.ensure_shape(total + other, other.shape)
    return total


def _together(one: tuple[int, bool], other: tuple[int, bool]) -> tuple[int, bool]:
    """The size of a sum: slices are put one after the other, but with a dense gradient all is dense."""
    (a, a_sparse), (b, b_sparse) = one, other
    if a_sparse and b_sparse:
        return a + b, True
    return max((size, False) for size, sparse in (one, other) if not sparse)


def _size(gradient: Any) -> tuple[int, bool]:
    """Bytes of a gradient, and whether it is sparse; none at all is a sparse one without slices."""
    if gradient is None:
        return 0, True
    if isinstance(gradient, tf.IndexedSlicesSpec):
        return 0, True
    if isinstance(gradient, tf.IndexedSlices):
        return num_bytes(gradient.values) + num_bytes(gradient.indices), True
    return num_bytes(gradient), False


def _is_known(gradient: Any) -> bool:
    if isinstance(gradient, tf.IndexedSlicesSpec):
        return False
    if isinstance(gradient, tf.IndexedSlices):
        return _is_known(gradient.values)
    return gradient is None or gradient.shape.is_fully_defined()
