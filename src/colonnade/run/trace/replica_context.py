"""The tf.distribute.ReplicaContext while tracing: marks where synchronised batch norm wants sums.

Keras's synchronised batch normalisation asks the replica context that it finds for an `all_reduce`.
While a function is traced it finds this one, which marks the place in the graph: an op that hands its
value on, and that the sum over the replicas takes the place of (see `sync_cut`). Where there is one
replica the marks stay as they are, because the sum is the value.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import tensorflow as tf

from colonnade.errors import ColonnadeError, InvalidArgument, Problem
from colonnade.run.trace.stage_marks import StageMarks

# The last part of a mark's name. A function may be traced inside another one and kept by TensorFlow, so
# that only the name tells of the marks in it.
MARK = "colonnade_sum_over_replicas"


@contextmanager
def remembered() -> Iterator[None]:
    """While a function of Colonnade's own is traced: its errors are told as they are (see `Traced`)."""
    try:
        yield
    except ColonnadeError as mistake:
        context = tf.distribute.get_replica_context()
        if isinstance(context, TracingContext):
            context.mistakes.append(mistake)
        raise


class TracingContext(tf.distribute.ReplicaContext):
    """The replica context around a function that is being traced.

    It belongs to the default strategy, so that nothing but `all_reduce` differs from no context.
    TensorFlow keeps it with the graph of the trace.
    """

    def __init__(self, mistakes: list[ColonnadeError]) -> None:
        super().__init__(tf.distribute.get_strategy(), replica_id_in_sync_group=0)
        self.mistakes = mistakes  # where errors are remembered that AutoGraph dresses up
        self.stage_marks = StageMarks()  # from stage to stage of a pipeline
        self._marks: list[tf.Tensor] = []
        self._summed = False
        self._share = 1.0

    def around_gradient(self) -> AbstractContextManager[Any]:
        """This context, for the gradient: `tf.recompute_grad` calls the layers there once more.

        Only where there are marks, because the gradient of a function that was traced in the default
        context insists on that one.
        """
        return self if self.marks(tf.compat.v1.get_default_graph()) else nullcontext()

    @tf.autograph.experimental.do_not_convert
    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if str(getattr(reduce_op, "value", reduce_op)).upper() != "SUM":
            rule = "is no mean over the examples where slices differ in size"
            fix = "All-reduce the sum and the number of examples, and divide"
            self.mistakes.append(
                InvalidArgument("all_reduce()", [Problem("reduce_op", reduce_op, rule, fix)])
            )
            raise self.mistakes[-1]
        return value if self._summed else tf.nest.map_structure(self._marked, value)

    @contextmanager
    def summed(self) -> Iterator[None]:
        """While what is asked to be summed is a sum already: optimizers of Keras ask for that too."""
        self._summed, before = True, self._summed
        try:
            yield
        finally:
            self._summed = before

    @contextmanager
    def differentiating(self, share: float) -> Iterator[None]:
        """While what is differentiated counts by this share in the sum over the replicas.

        By 1 where the replicas' values are added, as by default; by the share of the examples where each has
        the mean of its slice, and gradients are weighted only when they are complete.
        """
        self._share, before = share, self._share
        try:
            yield
        finally:
            self._share = before

    def _marked(self, value: Any, before: float = 1.0, after: float = 1.0) -> Any:
        """The sum over the replicas of `before * value`, times `after`; both may differ by replica."""

        # What a sum adds to the loss is felt by all replicas: the gradient of a sum over the replicas is the
        # sum over the replicas of the gradients. It takes them by their shares, and gives each replica one
        # that will be taken by its share.
        def gradient(upstream: Any) -> Any:
            return self._marked(upstream, after * self._share, before / self._share)

        @tf.custom_gradient
        def marked(tensor: Any) -> Any:
            mark = tf.identity(_times(tensor, before), name=MARK)
            self._marks.append(mark)
            return _times(mark, after), gradient

        return marked(tf.convert_to_tensor(value))

    def marks(self, graph: Any) -> tuple[str, ...]:
        """The names of the marks in a graph, in the order in which they were made.

        The order is that of the user's code, so it is the same in traces for slices of another size.
        Marks of other graphs are those of a first trace that made variables, of graphs in which Keras
        only looks for shapes, and of functions that this one calls.
        """
        return tuple(mark.op.name for mark in self._marks if mark.graph is graph)


def _times(tensor: Any, factor: float) -> Any:
    # Numbers of examples are summed too, and are integers.
    return tensor if factor == 1.0 else tensor * tf.constant(factor, tensor.dtype)
