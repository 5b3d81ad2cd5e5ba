"""Batches one by one, of which the next can be seen before it is taken: what a step may send ahead.

Keras hands a step the iterator of an epoch and asks for a step, or for several. A batch that is fetched early
is kept until it is asked for. So every batch comes once and in its order, and if the data end or fail, that
is told when the batch would have been asked for.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any


class ComingBatches:
    """An iterator over batches.

    Args:
        take: gives the next batch, or raises StopIteration.
        look: gives the same batch before it is taken; None if there is none, or nobody knows.
    """

    element_spec: Any = None  # of the batches, where it is known

    def __init__(self, take: Callable[[], Any], look: Callable[[], Any]) -> None:
        self._take, self._look = take, look
        self._seen = False  # whether somebody looked at the next one
        self._leave: Callable[[], None] | None = None
        self.at_hand: Any = None  # the batch that was taken last
        self.seen_before = False  # whether somebody looked at it before it was taken

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.seen_before, self._seen = self._seen, False
        self.at_hand = self._take()
        return self.at_hand

    def peek(self) -> Any:
        """The batch that comes next; None if there is none, or it is not to be fetched yet."""
        batch = self._look()
        self._seen = batch is not None
        return batch

    def at_end(self, leave: Callable[[], None] | None) -> None:
        """Be told what to do if the next batch, which was sent ahead, is never asked for."""
        self._leave = leave

    def close(self) -> None:
        """No batch is wanted any more."""
        leave, self._leave = self._leave, None
        self.at_hand, self._seen = None, False
        if leave is not None:
            leave()


class KerasBatches(ComingBatches):
    """The batches of the iterators that Keras hands to a step, one iterator or more for each epoch."""

    def __init__(self) -> None:
        super().__init__(self._next, self._following)
        self._source: Any = None
        self._held: Any = None  # what was fetched early
        self._failed: Exception | None = None  # why there was nothing to fetch
        # How many batches this epoch still takes; what comes then is not fetched, for others may want it.
        # None if it takes all that there are.
        self.left: int | None = 0

    def along(self, iterator: Any) -> "KerasBatches":
        """Go on with this iterator; if it is another one, nobody asks for more of the one before."""
        if iterator is not self._source:
            self._let_go()
            self._source, self.element_spec = iterator, getattr(iterator, "element_spec", None)
        return self

    def close(self) -> None:
        super().close()
        self._let_go()
        self.left = 0

    def _let_go(self) -> None:
        self._source = self._held = self._failed = None
        self._seen = False

    def _next(self) -> Any:
        if self.left is not None:
            self.left -= 1
        held, self._held = self._held, None
        if held is not None:
            return held
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed
        return next(self._source)

    def _following(self) -> Any:
        if self.left is not None and self.left <= 0:
            return None
        if self._held is None and self._failed is None:
            try:
                self._held = next(self._source)
            except Exception as error:  # the end, or whatever data raise: told when the batch is asked for
                self._failed = error
        return self._held


def of_execution(iterator: Iterator[Any], steps: int) -> Iterator[Any]:
    """The batches of one call of Keras, the first at once; the last call of an epoch may have fewer."""
    return chain([next(iterator)], islice(iterator, steps - 1))
