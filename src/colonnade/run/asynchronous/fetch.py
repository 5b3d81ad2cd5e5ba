"""Fetches batches from a dataset and cuts them into slices for asynchronous devices, several in one call.

They are not cut by tf.data: a map there takes a tenth of a millisecond for every batch, and is traced
anew for every fit.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.hardware.profile import Recording
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.data.batches import without_tuning
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.raw_call import Call

# Where steps are shorter than this, in seconds, so many batches are fetched by one call and queued: while
# the main thread is in Python, no device is.
SHORT, MANY = 0.002, 8


class SliceFetcher:
    """Cuts the batches of datasets of one kind; keeps the calls that fetch them."""

    def __init__(
        self, spec: Any, names: Sequence[str], keywords: dict[str, Any], devices: Sequence[str]
    ) -> None:
        self._spec, self._arguments = spec, Arguments(spec, keywords, names)
        check("fit()", _composites(self._arguments))
        self._names, self._keywords, self._devices = names, keywords, devices
        self._calls: dict[int, Call] = {}
        self._each = len(self._arguments.components())

    def slices(self, dataset: tf.data.Dataset) -> Iterator[tuple[int, list[list[Any]]]]:
        """For each batch the number of its rows, and the tensors of its slices."""
        ahead = without_tuning(dataset.prefetch(tf.data.AUTOTUNE))
        # The iterator must live as long as its handle is used.
        iterator = iter(ahead)
        handle = tf.nest.flatten(iterator, expand_composites=True)
        # Data that do not know their end come from Python or from files, and may fail: what one call has
        # fetched before that is lost.
        many = MANY if int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY else 1
        count, last = 1, time.perf_counter()
        while True:
            totals, *slices = self._fetch(count)(*handle)
            now = time.perf_counter()
            each = len(slices) // count
            for k, rows in enumerate(totals.numpy().tolist()):
                if rows < 0:
                    return
                flat = slices[k * each : (k + 1) * each]
                working = len(sizes(rows, len(self._devices)))
                yield rows, [flat[i * self._each : (i + 1) * self._each] for i in range(working)]
            count = many if (now - last) / count < SHORT and self._is_ready(many) else 1
            last = now

    def like(self, rows: int, piece: Sequence[Any]) -> Arguments:
        """A batch of so many rows that has slices like this one: enough to trace with."""
        return self._arguments.with_components(piece).resized(rows)

    def _fetch(self, count: int) -> Call:
        """Fetch and cut so many batches: how many rows each has, -1 at the end, and all their slices."""
        if count not in self._calls:
            one = self._one

            def fetch(iterator: Any) -> list[Any]:
                each = [one(iterator) for _ in range(count)]
                return [
                    tf.stack([total for total, *_ in each]),
                    *(part for _, *slices in each for part in slices),
                ]

            # Cut where tf.data puts batches, so that a device gets its slice and no more.
            self._calls[count] = Call(fetch, [tf.data.IteratorSpec(self._spec)], "/device:CPU:0")
        return self._calls[count]

    def _is_ready(self, count: int) -> bool:
        """Whether to fetch so many at once: not for the first time in a profile, which would show that."""
        return count in self._calls or not Recording.is_under_way()

    @cached_property
    def _one(self) -> Any:
        """Fetch and cut one batch: traced once, and called as often as there are batches to fetch."""

        def one(iterator: Any) -> list[Any]:
            optional = iterator.get_next_as_optional()
            cut = tf.cond(optional.has_value(), lambda: self._cut(optional.get_value()), self._nothing)
            return list(cut)

        return concrete(one, tf.data.IteratorSpec(self._spec))

    def _cut(self, element: Any) -> list[Any]:
        arguments = Arguments(element, self._keywords, self._names)
        rows, num_devices = arguments.size("fit()"), len(self._devices)
        known = all(leaf.value.shape[0] is not None for leaf in arguments.split)
        counts: Sequence[Any]
        if known and rows is not None and rows >= num_devices:
            total, counts = tf.constant(rows), sizes(rows, num_devices)
        else:
            counts = arguments.counts(num_devices, empty=True)
            total = tf.add_n(counts)
        return [total, *(c for part in arguments.parts(counts) for c in part.components())]

    def _nothing(self) -> list[Any]:
        empty = [
            tf.zeros([0 if size is None else size for size in c.shape], c.dtype)
            for c in self._arguments.components()
        ]
        return [tf.constant(-1), *empty * len(self._devices)]


def _composites(arguments: Arguments) -> Iterator[Problem]:
    for leaf in arguments.tensors:
        if not isinstance(leaf.value, tf.TensorSpec):
            rule = "is ragged or sparse, which an asynchronous fit cannot cut"
            kind = type(leaf.value).__name__.removesuffix("Spec")
            yield Problem(leaf.path, kind, rule, "Pad it, or train in lockstep: cn.Synchronous()")
