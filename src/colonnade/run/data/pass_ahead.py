"""Begins the next pass through the data while the one before it is under way, so that nobody waits for it.

A shuffle fills its buffer before it gives the first batch, and an iterator does nothing before it is asked
for one. So the next iterator is made as soon as the pass before it has begun, which draws its seeds, and is
asked for its first batch as late as it can be, since a full buffer takes memory. A thread does both: to make
an iterator takes long, too, where the data are a part of the dataset.

All iterators over a dataset draw from the same seeds. Where others may go through it during the fit, as an
evaluation in a callback, seeds are first set back to those that come after the pass at hand, and nobody else
has a turn until the next pass has drawn its own, and its state is known.
"""

import threading
import time
from typing import Any

import tensorflow as tf

from colonnade.run.data.iterator_state import restore_iterator, save_iterator

# The first batch is asked for when what is left of the pass takes so many times as long, and a little.
EARLY, MARGIN = 2.0, 0.5


class PassAhead:
    """The pass that comes next: its iterator, and its state before the first batch.

    Args:
        dataset: what it goes through.
        after: the state at the start of the pass before it, where others may have drawn seeds since.
    """

    def __init__(self, dataset: tf.data.Dataset, after: Any = None) -> None:
        self._dataset, self._after = dataset, after
        self.iterator: Any = None
        self.start: Any = None
        self._first: Any = None
        self._failed: Exception | None = None
        self._asked, self._over, self._drawn = threading.Event(), threading.Event(), threading.Event()
        self.seconds = 0.0  # until the first batch was there
        # A program that ends without a word does not wait for it; the end of a fit does.
        self._thread = threading.Thread(target=self._begin, name="colonnade-next-pass", daemon=True)
        self._thread.start()
        if after is not None:
            self._drawn.wait()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        """Fetch the first batch."""
        self._asked.set()

    def _begin(self) -> None:
        try:
            self.iterator = iterator_after(self._after, self._dataset)
            # It tells how many seeds were drawn by all, at this moment.
            self.start = save_iterator(self.iterator, "fit()")
            self._drawn.set()
            self._asked.wait()
            asked = time.perf_counter()
            if not self._over.is_set():
                self._first = self.iterator.get_next_as_optional()
                self._first.has_value()
            self.seconds = time.perf_counter() - asked
        except Exception as error:  # told to whoever takes the pass
            self._failed = error
        finally:
            self._drawn.set()

    def first(self) -> Any:
        """The first batch as an optional; None if it was not asked for. The rest is the iterator's."""
        if not self.asked:
            self.drop()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return self._first

    def end(self) -> None:
        """Nobody wants the pass. What it met on the way harms nobody: its data are not asked for."""
        self.drop()
        self._thread.join()

    def drop(self) -> None:
        """Nobody wants the first batch; it is not fetched, unless that has begun."""
        self._over.set()
        self._asked.set()


def iterator_after(state: Any, dataset: tf.data.Dataset) -> Any:
    """An iterator over the dataset, with the seeds that follow on those of a state, if there is one."""
    if state is not None:
        restore_iterator(iter(dataset), state, "fit()")
    return iter(dataset)


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
