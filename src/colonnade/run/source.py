"""Batches for devices that take slices one by one: cut by tf.data, and fetched several at a time."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem, check
from colonnade.run.batches import without_tuning
from colonnade.run.call import Call
from colonnade.run.concrete import unconverted
from colonnade.run.split import Arguments, sizes

# Where steps are shorter than this, in seconds, so many batches are fetched by one call: while the
# main thread is in Python, no device is.
SHORT, MANY = 0.002, 8


class Cutter:
    """Cuts the batches of datasets of one kind; keeps the calls that fetch them."""

    def __init__(
        self, spec: Any, names: Sequence[str], keywords: dict[str, Any], devices: Sequence[str]
    ) -> None:
        self._arguments = Arguments(spec, keywords, names)
        check("fit()", _composites(self._arguments))
        self._names, self._keywords, self._devices = names, keywords, devices
        self._calls: dict[int, Call] = {}
        self._each = len(self._arguments.components())

    def slices(self, dataset: tf.data.Dataset) -> Iterator[tuple[int, list[list[Any]]]]:
        """For each batch the number of its rows, and the tensors of its slices."""
        cut = without_tuning(dataset.map(unconverted(self._cut)).prefetch(tf.data.AUTOTUNE))
        spec = cut.element_spec
        iterator = iter(cut)
        handle = tf.nest.flatten(iterator, expand_composites=True)
        count, last = 1, time.perf_counter()
        while True:
            found = iter(self._fetch(count, spec)(*handle))
            now = time.perf_counter()
            for _ in range(count):
                there, rows, *flat = (next(found) for _ in range(1 + len(spec)))
                if not there:
                    return
                total = int(rows)
                working = len(sizes(total, len(self._devices)))
                yield total, [flat[i * self._each : (i + 1) * self._each] for i in range(working)]
            count = MANY if (now - last) / count < SHORT else 1
            last = now

    def like(self, rows: int, piece: Sequence[Any]) -> Arguments:
        """A batch of so many rows that has slices like this one: enough to trace with."""
        return self._arguments.with_components(piece).resized(rows)

    def _cut(self, *element: Any) -> tuple[Any, ...]:
        arguments = Arguments(element, self._keywords, self._names)
        counts = arguments.counts(len(self._devices), empty=True)
        parts = arguments.parts(counts)
        return (tf.add_n(counts), *(c for part in parts for c in part.components()))

    def _fetch(self, count: int, spec: Sequence[tf.TensorSpec]) -> Call:
        if count not in self._calls:

            def fetch(iterator: Any) -> list[Any]:
                found = []
                for _ in range(count):
                    optional = iterator.get_next_as_optional()
                    there = optional.has_value()
                    found += [there, *tf.cond(there, optional.get_value, lambda: _nothing(spec))]
                return found

            kind = tf.data.IteratorSpec(tuple(spec))
            self._calls[count] = Call(fetch, [kind], self._devices[0])
        return self._calls[count]


def _composites(arguments: Arguments) -> Iterator[Problem]:
    for leaf in arguments.tensors:
        if not isinstance(leaf.value, tf.TensorSpec):
            rule = "is ragged or sparse, which an asynchronous fit cannot cut"
            kind = type(leaf.value).__name__.removesuffix("Spec")
            yield Problem(leaf.path, kind, rule, "Pad it, or train in lockstep: cn.Synchronous()")


def _nothing(spec: Sequence[tf.TensorSpec]) -> tuple[Any, ...]:
    return tuple(tf.zeros([size or 0 for size in s.shape], s.dtype) for s in spec)
