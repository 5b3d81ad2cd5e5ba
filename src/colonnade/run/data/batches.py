"""Iterates over the batches of a fit, looks one ahead, and knows the place in the data for a checkpoint."""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.data.iterator_state import (
    comes_again,
    num_shuffles_at_work,
    other_batches,
    restore_iterator,
    save_iterator,
)
from colonnade.run.data.pass_ahead import EpochPace, PassAhead, iterator_after
from colonnade.run.data.shuffles import Shuffles

# The size of the batch at hand where the data end; one of 0 rows is a mistake, and told as that.
END = -1
OTHER_ORDER = (
    "The data go on where they were, and every example counts once; but from the next round of their "
    "shuffles on they come in another order than in a run that was never cut: their seeds could not be found "
    "again. Let fit(..., epochs=) repeat the data, not the dataset itself, and put a cache in front of "
    "its shuffles."
)


class Batches:
    """Goes through a dataset with one batch fetched ahead.

    Args:
        dataset: what to go through, and how often: `passes` times, each with an iterator of its own.
        names, keywords: of the loss function's arguments.
        exact: whether the place in the data can be told.
        ahead: whether to fetch the first batch; if not, `seek` comes next, and finds the shuffles as new.
        most: how many batches will be taken, at most, if that is known.
        watched: whether others may go through the dataset meanwhile.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        names: Sequence[str],
        keywords: dict[str, Any],
        passes: int = 1,
        *,
        exact: bool = False,
        ahead: bool = True,
        most: int | None = None,
        watched: bool = False,
    ) -> None:
        self._watched = watched
        self._names, self._keywords = names, keywords
        self._structure = dataset.element_spec
        self._dataset = without_tuning(dataset.prefetch(tf.data.AUTOTUNE))
        self.cardinality = int(dataset.cardinality())  # batches in a pass, if that is known
        self.passes, self.begun, self.exact = passes, 0, exact
        self._start: Any = None
        self._taken = 0
        self._before: int | None = None  # taken before this pass; None until it is noted
        self._noted = 0  # the last of these
        self.iterator: Any = None
        self.size = END  # of the batch at hand
        self._batch: list[Any] = []
        self._failed: tf.errors.OpError | None = None
        # What comes in an order of the moment never comes again.
        self._ordered = dataset.options().deterministic is not False
        self._shuffles = Shuffles.of(dataset) if exact else Shuffles([], [])
        self._whole = False  # whether the place is kept with all buffers
        self._most = -1 if most is None else most
        self._finished = 0  # passes of which this object has seen the end
        self._following: PassAhead | None = None  # where it can be begun before this one has ended
        self._pace = EpochPace(self.cardinality)
        if not ahead:
            self._begin_pass()
            return
        self.next_pass()
        self.note(0)
        if exact:
            # The buffers of all shuffles are in that state: it is looked at only where it may tell more.
            later = save_iterator(self.iterator, "fit()") if self._shuffles.hidden else self._start
            self._whole = not (self._ordered and comes_again(self._start, later, self._shuffles))
            self._look_ahead()

    def next_pass(self) -> None:
        """At the end of a pass: begin the next, if there is one and it has a batch."""
        while self.size == END and self.begun < self.passes:
            self._finished += self.begun > 0
            following = self._begin_pass()
            self._fetch(following)
            # The first pass has to give a batch before it is known whether the next can be begun.
            if self.begun > 1:
                self._look_ahead()

    def _begin_pass(self) -> Any:
        """Returns the first batch, if it was asked for already."""
        ready, self._following = self._following, None
        self.begun, self._before = self.begun + 1, None
        if ready is not None:
            first = ready.first()
            self.iterator, self._start = ready.iterator, ready.start
            self._pace.fill = max(self._pace.fill, ready.seconds)
            return first
        self.iterator = iterator_after(self._own_seeds(), self._dataset)
        if self.exact:
            self._start = save_iterator(self.iterator, "fit()")
        return None

    def _own_seeds(self) -> Any:
        """The state after which the next pass draws its seeds, if others may have drawn since.

        Where a pass draws seeds later than at its start, that does not tell of them.
        """
        return self._start if self._watched and self._ordered and not self._whole else None

    def _look_ahead(self) -> None:
        """Begin the next pass, where that changes nothing.

        Shuffles draw their seeds when a pass is begun: where they draw more within a pass, or are not yet
        begun, the next pass would take theirs. A cache has to be full before another pass reads it.
        """
        safe = self.exact and self._ordered and not self._whole
        wanted = self.begun < self.passes and not 0 <= self._most <= self.cardinality * self.begun
        if safe and wanted and (self._finished or not self._shuffles.caches):
            self._following = PassAhead(self._dataset, self._own_seeds())

    def close(self) -> None:
        """At the end of a fit: let shuffles be as if no pass had been begun ahead, and by nobody else."""
        following, self._following = self._following, None
        if following is not None:
            following.end()
        if following is not None or self._own_seeds() is not None:
            restore_iterator(iter(self._dataset), self._start, "fit()")

    def _fetch(self, following: Any = None) -> None:
        if following is None:
            asked = time.perf_counter()
            following = self.iterator.get_next_as_optional()
            self._pace.fill = max(self._pace.fill, time.perf_counter() - asked)
        self.size = END
        if following.has_value():
            batch = following.get_value()
            self.go_on_with(int(rows(batch)), tf.nest.flatten(batch, expand_composites=True))

    def pass_over(self, begun: int) -> None:
        """Begin as many passes as were begun before: a dataset that reshuffles counts them."""
        while self.begun < begun:
            self._begin_pass()

    @property
    def spec(self) -> str:
        """The structure of a batch, in words."""
        return str(self._structure)

    def like(self) -> Arguments | None:
        """The last batch that was at hand; None if there never was one."""
        if not self._batch:
            return None
        batch = tf.nest.pack_sequence_as(self._structure, self._batch, expand_composites=True)
        return Arguments(batch, self._keywords, self._names)

    def at_hand(self) -> Arguments | None:
        """The next batch; None at the end of the data."""
        return self.like() if self.size != END else None

    def next(self) -> Arguments | None:
        """Take the batch at hand, and fetch another one; if that fails, it is the next call that says so."""
        if self._failed is not None:
            raise self._failed
        taken = self.at_hand()
        if taken is not None:
            self._taken += 1
            try:
                self._fetch()
                self.next_pass()
            except tf.errors.OpError as error:
                self._failed = error
            self.note(self._taken)
        return taken

    def go_on_with(self, size: int, batch: Sequence[Any]) -> None:
        """Put a batch that was fetched elsewhere at hand."""
        self.size, self._batch = size, list(batch)

    @property
    def failed(self) -> bool:
        """Whether the next batch could not be fetched, which `next` says."""
        return self._failed is not None

    def fail(self, error: tf.errors.OpError) -> None:
        """Be told that the next batch could not be fetched elsewhere: there is none at hand."""
        self._failed = error

    def note(self, taken: int) -> None:
        """Be told how many batches were taken in all; steps that fetch by themselves do not count here."""
        if self._before is None:
            self._pace.begin(taken - self._noted)
            self._before = self._noted = taken
        elif self._following is not None and self._pace.is_due(taken - self._before):
            self._following.ask()

    def position(self, taken: int) -> dict[str, Any]:
        """The batch at hand, which was fetched ahead, and if `exact` the way to its place in the data.

        That is the start of the pass, with the seeds of its shuffles, and how many batches to go on from
        there. The state of the iterator has the buffers of all shuffles in it, which take long to copy, so
        it is told only where going through the pass again may not give the same.
        """
        if self._failed is not None:  # there is no batch to go on with
            raise self._failed
        place = {f"batch/{i}": component for i, component in enumerate(self._batch)}
        if self.exact:
            assert self._before is not None
            fetched = taken - self._before + (self.size != END)
            place |= {"start": self._start, "fetched": tf.constant(fetched, tf.int64)}
            if self._whole:
                place["iterator"] = save_iterator(self.iterator, "fit()")
                place["shuffles"] = tf.constant(self._shuffles.words, tf.string)
        return {"size": tf.constant(self.size), **place}

    def seek(self, position: Mapping[str, Any], begun: int, taken: int) -> None:
        """Go to a place that `position` told; if not `exact`, only its batch is taken, to be looked at.

        Args:
            position: the place.
            begun, taken: how many passes were begun before it, and how many batches taken.
        """
        count = sum(name.startswith("batch/") for name in position)
        batch = [position[f"batch/{i}"] for i in range(count)]
        if self.exact:
            # Before there was END, the end was a size of 0.
            size, fetched = int(position["size"]) or END, int(position["fetched"])
            self._start, self.begun, self._taken = position["start"], begun, taken
            self._before = taken - fetched + (size != END)
            self._whole = "iterator" in position
            if not self._whole:
                if not self._gone_forward(fetched, size, batch):
                    raise other_batches()
                self._noted = self._before
                self._look_ahead()
                return
            refills = self._shuffles.cached and begun > 1  # with what the shuffles give this time
            if self._to_go_forward(position):
                self._shuffles.begin(begun - 1)
                there = self._gone_forward(fetched, size, batch)
                if not there or refills:
                    warnings.warn(OTHER_ORDER, stacklevel=2)
                if there:
                    return
            # The start tells of shuffles that are at their end since, the state of all that are at work.
            restore_iterator(self.iterator, self._start, "fit()")
            restore_iterator(self.iterator, position["iterator"], "fit()")
            self.size = size
        if self.exact or not self._batch:
            self._batch = batch

    def _to_go_forward(self, position: Mapping[str, Any]) -> bool:
        """Whether the buffers do not tell all seeds, and going through the pass again does.

        Without seeds, it would give other batches.
        """
        saved, here = position.get("shuffles"), self._shuffles.words
        seeded = saved is None or [word.decode() for word in saved.numpy()] == here
        return self._ordered and seeded and num_shuffles_at_work(position["iterator"]) < len(here)

    def _gone_forward(self, fetched: int, size: int, batch: list[Any]) -> bool:
        """Fetch so many batches from the start of the pass; whether this one is the last of them."""
        restore_iterator(self.iterator, self._start, "fit()")
        self.size = END
        for _ in range(fetched):
            self._fetch()
        if size == END:  # the place is behind the last batch
            self._fetch()
        return self.size == size and (not fetched or all(map(_equal, self._batch, batch)))


def _equal(one: Any, other: Any) -> bool:
    """Bit for bit, also for strings and for what is not a number."""
    return bool(tf.io.serialize_tensor(one) == tf.io.serialize_tensor(other))


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Without TensorFlow's tuning thread, unless the user asked for it.

    The end of an iterator wakes that thread, but not always; then it waits until the thread wakes by
    itself, which takes as long again as the iterator has lived, up to a minute. Without it,
    `AUTOTUNE` means as many as there are threads.
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def rows(batch: Any) -> Any:
    """The size of a batch."""
    tensors = tf.nest.flatten(batch)
    first = next((t for t in tensors if t.shape.rank != 0), None)
    return tf.constant(1) if first is None else _dims(first)[0]


def dims(tensors: Sequence[Any]) -> Any:
    """The dims of all that a graph is built for, one after the other.

    The lengths of rows of a ragged tensor, and how many values a sparse one has, are not among them.
    """
    return tf.concat([_dims(tensor) for tensor in tensors], axis=0)


def _dims(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        rows = tf.cast(tensor.nrows(), tf.int32)
        return tf.concat([[rows], tf.shape(tensor.flat_values)[1:]], axis=0)
    if isinstance(tensor, tf.SparseTensor):
        return tf.cast(tensor.dense_shape, tf.int32)
    return tf.shape(tensor)
