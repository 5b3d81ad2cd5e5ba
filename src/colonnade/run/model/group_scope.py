"""A step of a model as one of several replicas makes it, each of which has a whole batch of its own.

Gradients are the mean over the batches. What metrics are given is noted, and given to them afterwards, batch
after batch: batches may differ in all their dims, so there is nothing to put together.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.replica_scope import ReplicaScope


class GroupScope(ReplicaScope):
    """What a replica does in place of what the step asks for.

    Args:
        place: of the batch in its group, as a tensor.
        num_batches: how many there are in the group.
    """

    def __init__(self, place: Any, num_batches: int) -> None:
        super().__init__(1, num_batches, None)
        self._place, self._num_batches = place, num_batches
        self.noted = DeferredMetrics([])

    @contextmanager
    def entered(self, metrics: Sequence[Any]) -> Iterator["GroupScope"]:
        with ExitStack() as stack:
            stack.enter_context(super().entered([]))
            self.noted = stack.enter_context(DeferredMetrics(metrics))
            yield self

    def _sum(self, gradient: Any, name: str) -> Any:
        """The mean over the batches; of a table that is looked up in rows, the rows of all of them."""
        if gradient is None or not isinstance(gradient, tf.IndexedSlices):
            return None if gradient is None else self._mean(tf.convert_to_tensor(gradient))
        values = self._of_all(gradient.values * tf.constant(self._share, gradient.dtype))
        return tf.IndexedSlices(values, self._of_all(gradient.indices), gradient.dense_shape)

    def _adds_examples(self, target: Any) -> bool:
        """A batch counts as a whole, whatever its loss is."""
        return False

    def _weight(self, source: Any, *, adds: bool) -> float:
        return 1.0

    @property
    def _slot(self) -> tuple[Any, int]:
        return self._place, self._num_batches
