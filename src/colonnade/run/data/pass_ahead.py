"""Begins the next pass through the data while the one before it is under way, so that nobody waits for it.

A shuffle fills its buffer before it gives the first batch, and an iterator does nothing before it is asked
for one. So the next iterator is made as soon as the pass before it has begun, which draws its seeds, and is
asked for its first batch as late as it can be, since a full buffer takes memory. A thread does both: to make
an iterator takes long, too, where the data are a part of the dataset.
"""

import threading
import time
from typing import Any

import tensorflow as tf

from colonnade.run.data.iterator_state import save_iterator

# The first batch is asked for when what is left of the pass takes so many times as long, and a little.
EARLY, MARGIN = 2.0, 0.5


class PassAhead:
    """The pass that comes next: its iterator, and its state before the first batch."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self.iterator: Any = None
        self.start: Any = None
        self._first: Any = None
        self._failed: Exception | None = None
        self._asked, self._over = threading.Event(), threading.Event()
        self.seconds = 0.0  # until the first batch was there
        # A program that ends without a word does not wait for it; the end of a fit does.
        self._thread = threading.Thread(target=self._begin, name="colonnade-next-pass", daemon=True)
        self._thread.start()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Fetch the first batch."""
        self._asked.set()

    def _begin(self) -> None:
        try:
            self.iterator = iter(self._dataset)
            self.start = save_iterator(self.iterator, "fit()")
            self._asked.wait()
            begun = time.perf_counter()
            if not self._over.is_set():
                self._first = self.iterator.get_next_as_optional()
                self._first.has_value()
            self.seconds = time.perf_counter() - begun
        except Exception as error:  # told to whoever takes the pass
            self._failed = error

    def first(self) -> Any:
        """The first batch as an optional; None if it was not asked for. The rest is the iterator's."""
        if not self.asked:
            self.drop()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return self._first

    def drop(self) -> None:
        """Nobody wants the first batch; it is not fetched, unless that has begun."""
        self._over.set()
        self._asked.set()


class EpochPace:
    """How long the pass at hand will last, and whether it is time to ask for the next one."""

    def __init__(self, cardinality: int) -> None:
        self._batches = cardinality  # of a pass; negative while it is not known
        self._begun = time.perf_counter()
        self.fill = 0.0  # seconds until a pass gives its first batch

    def begin(self, taken: int) -> None:
        """A pass begins; the one before it had so many batches, or 0 if there was none."""
        if taken:
            self._batches = taken
        self._begun = time.perf_counter()

    def is_due(self, taken: int) -> bool:
        """Whether the rest of the pass, of which so many batches are taken, lasts no longer than a fill."""
        if not taken or self._batches < 0:
            return False
        each = (time.perf_counter() - self._begun) / taken
        return (self._batches - taken) * each <= EARLY * self.fill + MARGIN
