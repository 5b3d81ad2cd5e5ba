"""The batches of one fit, one of them at hand, and the place in the data behind it."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.position import frozen, thaw
from colonnade.run.split import Arguments


class Batches:
    """Goes through a dataset with one batch fetched ahead.

    Args:
        dataset: what to go through, and how often: `passes` times, each with an iterator of its own.
        names, keywords: of the loss function's arguments.
        exact: whether the place in the data can be told.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        names: Sequence[str],
        keywords: dict[str, Any],
        passes: int = 1,
        *,
        exact: bool = False,
    ) -> None:
        self._names, self._keywords = names, keywords
        self._structure = dataset.element_spec
        self._dataset = without_tuning(dataset.map(_with_size).prefetch(tf.data.AUTOTUNE))
        self._passes, self.begun, self.exact = passes, 0, exact
        self._start: Any = None
        self.iterator: Any = None
        self.size = 0  # of the batch at hand; 0 at the end
        self._batch: list[Any] = []
        self.next_pass()

    def next_pass(self) -> None:
        """At the end of a pass: begin the next, if there is one and it has a batch."""
        while not self.size and self.begun < self._passes:
            self._begin_pass()
            self._fetch()

    def _begin_pass(self) -> None:
        self.iterator = iter(self._dataset)
        self.begun += 1
        if self.exact:
            self._start = frozen(self.iterator, "fit()")

    def _fetch(self) -> None:
        found = self.iterator.get_next_as_optional()
        self.size = 0
        if found.has_value():
            size, _, batch = found.get_value()
            self.go_on_with(int(size), tf.nest.flatten(batch, expand_composites=True))

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
        return self.like() if self.size else None

    def next(self) -> Arguments | None:
        """Take the batch at hand, and fetch another one."""
        taken = self.at_hand()
        if taken is not None:
            self._fetch()
            self.next_pass()
        return taken

    def go_on_with(self, size: int, batch: list[Any]) -> None:
        """Put a batch that was fetched elsewhere at hand."""
        self.size, self._batch = size, batch

    def position(self) -> dict[str, Any]:
        """The batch at hand, which was fetched ahead, and if `exact` the place in the data behind it.

        The start of the pass is told too: a shuffle that has come to its end leaves no trace in the
        state of the iterator, and would not know which order is the next.
        """
        batch = {f"batch/{i}": component for i, component in enumerate(self._batch)}
        place = {"iterator": frozen(self.iterator, "fit()"), "start": self._start} if self.exact else {}
        return {"size": tf.constant(self.size), **batch, **place}

    def seek(self, position: Mapping[str, Any], begun: int) -> None:
        """Go to a place that `position` told; if not `exact`, only its batch is taken, to be looked at."""
        if self.exact:
            thaw(self.iterator, position["iterator"], "fit()")
            # What the shuffles of the dataset know in common is that of the start of the pass.
            thaw(iter(self._dataset), position["start"], "fit()")
            self._start, self.size, self.begun = position["start"], int(position["size"]), begun
        if self.exact or not self._batch:
            count = sum(name.startswith("batch/") for name in position)
            self._batch = [position[f"batch/{i}"] for i in range(count)]


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


def _with_size(*batch: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """The number of rows, the dims of everything, the batch."""
    tensors = tf.nest.flatten(batch)
    rows = next((t for t in tensors if t.shape.rank != 0), None)
    return tf.constant(1) if rows is None else _dims(rows)[0], dims(tensors), batch


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
