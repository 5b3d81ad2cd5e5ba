"""The data of one fit: a dataset, how often the fit goes through it, and how a batch becomes arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.run.data.batches import Batches
from colonnade.run.data.feed import feed


@dataclass(frozen=True)
class FitData:
    """What a fit trains on.

    Args:
        dataset: its batches.
        names, keywords: of the loss function's arguments.
        passes: how often to go through the dataset, each time with an iterator of its own.
        watched: whether others may go through the dataset between steps, as callbacks may.
    """

    dataset: tf.data.Dataset
    names: Sequence[str]
    keywords: dict[str, Any]
    passes: int = 1
    watched: bool = False

    @classmethod
    def of(
        cls,
        data: Any,
        batch_size: int | None,
        epochs: int | None,
        names: Sequence[str],
        keywords: dict[str, Any],
        *,
        exact: bool,
        watched: bool = False,
    ) -> "FitData":
        """What a user passed to a fit, repeated as often as it goes through them.

        With `exact`, the state of a dataset's iterator is saved: then each epoch has one (see `Batches`).
        """
        dataset = feed(data, batch_size, "fit()")
        given = isinstance(data, tf.data.Dataset)
        passes = epochs if epochs is not None and exact and given else 1
        if epochs is None and not given and batch_size is not None:
            dataset = dataset.repeat()
        elif epochs is not None and passes == 1:
            dataset = dataset.repeat(epochs)
        return cls(dataset, names, keywords, passes, watched)

    def expected(self, steps: int | None) -> int | None:
        """How many steps there will be, as far as one can tell, of at most so many."""
        batches = int(self.dataset.cardinality()) * self.passes
        return min((n for n in (steps, batches if batches >= 0 else None) if n is not None), default=None)

    def batches(
        self, dataset: tf.data.Dataset, *, exact: bool, ahead: bool, most: int | None = None
    ) -> Batches:
        """The batches of what is left of the dataset (see `Batches`)."""
        return Batches(
            dataset,
            self.names,
            self.keywords,
            self.passes,
            exact=exact,
            ahead=ahead,
            most=most,
            watched=self.watched,
        )
