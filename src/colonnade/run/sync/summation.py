"""How the gradients of replicas become sums: on one device, on all, or on those that own the parameters."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.engine.protocols import Settings
from colonnade.run.move.buckets import fits
from colonnade.run.move.library_sums import LibrarySums, can_sum
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.move.reduce import Order, bucket_for, reduce, traffic
from colonnade.run.move.reductions import AUTO, LIBRARY, SMALL, TREE, chosen
from colonnade.run.move.ring import owner_sums, owner_traffic, ring_sums, ring_traffic

# By position of source and target, the bytes that a sum moves.
Moved = dict[tuple[int, int], float]


class Summation:
    """Sums along a tree, or in equal parts on all devices, as `reduce=` says.

    What cannot be cut into equal parts takes the tree: sparse gradients, those that some slices do not have,
    and those of unknown shape.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._devices = settings, settings.devices
        several = settings.peers.several  # between machines, sums take another way
        self._way = TREE if several else chosen(settings.reduce, settings.devices, settings.mode)
        self._library = LibrarySums(settings.devices) if self._way == LIBRARY else None
        # After a sum that was broken off, the library refuses all that follow.
        self.unbroken = self._library is not None

    @property
    def _everywhere(self) -> bool:
        return self._settings.mode == "mirrored"

    def sums(
        self,
        gradients: Sequence[Sequence[Any]],
        order: Order,
        owners: Sequence[int] = (),
        made: Sequence[int] = (),
        *,
        first: bool = False,
    ) -> list[list[Any]]:
        """For the first copy of the variables the sum of each gradient; for others those that arrive there.

        Args:
            gradients: of the first devices, those that have work.
            order: along which to sum what takes the tree.
            owners: for each gradient the device that updates its parameter, where variables are partitioned.
            made: for each gradient when it is there, by some count, so that the first ones travel together.
            first: whether sums are for the first steps on some batches, to which devices may come late.
        """
        working = self._devices[: len(gradients)]
        even = self._even(gradients)
        others = [[None if i in even else g for i, g in enumerate(row)] for row in gradients]
        copies = [_along(order, others, working, made)]
        if even:
            rows = [[row[i] for i in even] for row in gradients]
            own = [owners[i] for i in even if owners]
            arrived = self._summed(rows, own, [made[i] for i in even if made], first=first)
            copies += [[None] * len(gradients[0]) for _ in arrived[1:]]
            for copy, totals in zip(copies, arrived, strict=True):
                for i, total in zip(even, totals, strict=True):
                    copy[i] = total
        return copies

    def _even(self, gradients: Sequence[Sequence[Any]]) -> list[int]:
        """The positions of gradients that are summed in equal parts."""
        if self._way == TREE or len(self._devices) == 1:
            return []
        even = [i for i, column in enumerate(zip(*gradients, strict=True)) if fits(column)]
        return [] if self._is_small(sum(num_bytes(gradients[0][i]) for i in even)) else even

    def _is_small(self, size: int) -> bool:
        """Whether so many bytes are not worth many messages, if nobody asked for them."""
        return self._settings.reduce == AUTO and size < SMALL * len(self._devices)

    def _summed(
        self, rows: Sequence[Sequence[Any]], owners: Sequence[int], made: Sequence[int], *, first: bool
    ) -> list[list[Any]]:
        if owners:
            return [owner_sums(rows, self._devices, owners, made=made)]
        if self._library is not None and len(rows) == len(self._devices) and can_sum(rows[0]):
            return self._library.sums(rows, made=made, first=first)
        return ring_sums(rows, self._devices, everywhere=self._everywhere, made=made)

    def moved(self, specs: Sequence[Any], owners: Sequence[int] = ()) -> tuple[Moved, set[int]]:
        """Bytes by pair of devices, and the positions of gradients that are with their owners then."""
        even = self._even_specs(specs)
        others = [None if i in even else spec for i, spec in enumerate(specs)]
        moved: Counter[tuple[int, int]] = Counter()
        by_tree = traffic([others] * len(self._devices), self._settings.order).links
        for (source, target), size in by_tree.items():
            moved[source, target] += size
            moved[target, source] += size if self._everywhere else 0
        sizes = {i: num_bytes(specs[i]) for i in even}
        if owners:
            by_owner: Counter[int] = Counter()
            for i, size in sizes.items():
                by_owner[owners[i] if owners[i] < len(self._devices) else 0] += size
            moved.update(owner_traffic(by_owner, self._devices))
        elif even:
            moved.update(ring_traffic(sum(sizes.values()), self._devices, everywhere=self._everywhere))
        return {pair: size for pair, size in moved.items() if size}, even if owners else set()

    def _even_specs(self, specs: Sequence[Any]) -> set[int]:
        if self._way == TREE or len(self._devices) == 1:
            return set()
        even = {i for i, s in enumerate(specs) if isinstance(s, tf.TensorSpec) and num_bytes(s)}
        return set() if self._is_small(sum(num_bytes(specs[i]) for i in even)) else even


def _along(
    order: Order, gradients: Sequence[Sequence[Any]], devices: Sequence[str], made: Sequence[int]
) -> list[Any]:
    """The sums on the first device; in messages, those that are made first together."""
    bucket = bucket_for(devices)
    first = sorted(range(len(gradients[0])), key=lambda i: made[i] if made and bucket else i)
    rows = [[row[i] for i in first] for row in gradients]
    sums = dict(zip(first, reduce(rows, devices, order, bucket_bytes=bucket), strict=True))
    return [sums[i] for i in range(len(first))]
