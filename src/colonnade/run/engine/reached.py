"""What the steps of one call into the graph have reached, kept where a failure does not take it away.

A call that fails gives nothing back. But the steps before the failure were made, their updates are in the
variables, and so they count.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from colonnade.run.engine.protocols import Chunk, Outcome

READS = ("ReadVariableOp", "VarHandleOp")


class Reached:
    """Variables that a loop of steps writes to at every turn.

    Args:
        replicas: how many work.
        metrics: their names.
    """

    def __init__(self, replicas: int, metrics: Sequence[str]) -> None:
        self._names = list(metrics)
        with tf.device("/device:CPU:0"):
            self._steps, self._skipped, self._idle, self._fetched = (
                tf.Variable(0, trainable=False, name=name) for name in ("steps", "skipped", "idle", "fetched")
            )
            self._waited = tf.Variable(0.0, trainable=False, dtype=tf.float64, name="waited")
            self._losses = tf.Variable(tf.zeros([0]), shape=[None], trainable=False, name="losses")
            self._replicas = tf.Variable(tf.zeros([replicas], tf.float64), trainable=False, name="replicas")
            self._metrics = tf.Variable(tf.zeros([len(metrics)], tf.float64), trainable=False, name="metrics")

    def begin(self, steps: int, idle: int) -> None:
        """Before a call of at most so many steps."""
        self._steps.assign(0)
        self._skipped.assign(0)
        self._idle.assign(idle)
        self._fetched.assign(0)
        self._waited.assign(0.0)
        self._losses.assign(tf.zeros([steps]))

    def note(self, number: Any, outcome: Outcome) -> tuple[Any, Any]:
        """In the graph, behind all that the step does: how many steps were made, how many in a row idle."""
        loss = tf.cast(outcome.loss, tf.float32)
        self._losses.scatter_update(tf.IndexedSlices(loss, number))
        self._replicas.assign(tf.cast(outcome.replicas, tf.float64))
        if self._names:
            self._metrics.assign(tf.stack([tf.cast(m, tf.float64) for m in outcome.metrics.values()]))
        return self._steps.assign_add(1, read_value=True), self._idle_after(outcome.skipped)

    def _idle_after(self, skipped: Any) -> Any:
        if tf.get_static_value(skipped) == 0:  # the way never skips, and nothing is written
            return tf.constant(0)
        skipped = tf.cast(skipped, tf.int32)
        self._skipped.assign_add(skipped)
        return self._idle.assign(tf.where(skipped > 0, self._idle + 1, 0), read_value=True)

    def note_ahead(self) -> Any:
        """In the graph: from here on a batch is waited for before the first step, and not after it."""
        return self._fetched.assign(-1, read_value=False)

    def note_fetched(self, size: Any, asked: Any) -> Any:
        """In the graph, behind the fetch of the next batch: its size, and when it was asked for."""
        with tf.control_dependencies([size]):
            counted = self._fetched.assign_add(1, read_value=False)
            waited = self._waited.assign_add(tf.timestamp() - asked, read_value=False)
        with tf.control_dependencies([counted, waited]):
            return tf.identity(size)

    @property
    def steps(self) -> int:
        """How many were made, from the first to the last of what they do."""
        return int(self._steps)

    def progress(self) -> tuple[int, bool]:
        """While steps are made: how many there are, and whether the batch after them is waited for."""
        return self.steps, self.resting

    @property
    def idle(self) -> int:
        """How many of the last ones made no update."""
        return int(self._idle)

    @property
    def resting(self) -> bool:
        """Whether the data are waited for, between two steps; after a failure, whether it was they."""
        return self.steps > int(self._fetched)

    def chunk(self, rows: int, seconds: float) -> Chunk:
        """The steps that were made, of batches of so many rows."""
        steps, skipped = self.steps, int(self._skipped)
        return Chunk(
            seconds=seconds,
            steps=steps,
            examples=steps * rows,
            losses=self._losses.numpy()[:steps].tolist(),
            metrics=dict(zip(self._names, self._metrics.numpy().tolist(), strict=True)),
            replicas=self._replicas.numpy().tolist(),
            skipped=skipped,
            updates=steps - skipped,
            idle=self.idle,
            waited=float(self._waited),
        )


@contextmanager
def collected() -> Iterator[list[tf.Operation]]:
    """Collects what is written and called while a part of a graph is built."""
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    effects: list[tf.Operation] = []
    yield effects
    built = graph.get_operations()[before:]
    effects += [op for op in built if op.op_def.is_stateful and op.type not in READS]
