"""Variables that the loss function itself changes (moving averages): a copy per replica, made one value.

TensorFlow and Keras have the word for it, `aggregation=` of a variable:

    mean                 of the replicas' values, by the sizes of their slices where replicas go in step
    sum                  what each replica added, all added to the value before
    only_first_replica   the value of replica 0

A variable that says nothing is averaged if it has floats, as moving averages do; of others replica 0's value
is kept. The states of random generators stay as they are: each replica has its own stream.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.move.seed_places import is_seed
from colonnade.run.trace.captures import Capture
from colonnade.run.trace.traced import Traced

SEED_STRIDE = 1_000_003

Mean = Callable[[Sequence[tf.Variable]], Any]


@dataclass(frozen=True)
class ReplicatedState:
    """A variable that the function changes, with a copy for each replica."""

    original: tf.Variable
    copies: tuple[tf.Variable, ...]
    random: bool  # the state of a random generator, of which each replica has its own stream
    trained: bool = False  # the optimizer changes it too, after the function
    base: tf.Variable | None = None  # of a sum: the value from which the copies set out

    @property
    def averaged(self) -> bool:
        """Whether a checkpoint takes it for one value in lockstep, and else for what replicas have."""
        return bool(self.original.dtype.is_floating)

    @property
    def copied(self) -> tuple[tf.Variable, ...]:
        """What takes the common value when replicas set out from it again."""
        return self.copies if self.base is None else (*self.copies, self.base)

    def value(self, mean: Mean) -> Any:
        """The one value of the copies; `mean` is that over the replicas that had work."""
        if self.base is not None:  # who had no work has added nothing
            before = self.base.read_value()
            return before + tf.add_n([copy.read_value() - before for copy in self.copies])
        averaged = len(self.copies) > 1 and rule_of(self.original) == "mean"
        return mean(self.copies) if averaged else self.copies[0].read_value()


def rule_of(variable: tf.Variable) -> str:
    """What becomes of the replicas' values: mean, sum or first."""
    said = {"MEAN": "mean", "SUM": "sum", "ONLY_FIRST_REPLICA": "first"}.get(variable.aggregation.name)
    return said or ("mean" if variable.dtype.is_floating or variable.dtype.is_complex else "first")


def mean_by(counts: Sequence[int]) -> Mean:
    """The mean over the first copies, by the sizes of their slices: so a mean over examples stays one."""
    weights = weights_of(counts, counts)

    def mean(copies: Sequence[tf.Variable]) -> Any:
        values = [copy.read_value() for copy in copies[: len(counts)]]
        total = tf.add_n([weighed(v, w) for v, w in zip(values, weights, strict=True)])
        return tf.cast(total / len(counts), copies[0].dtype)

    return mean


def mean_of(values: Sequence[Any], shares: Sequence[Any]) -> Any:
    """A mean, in which each value counts by its share of 1: doubles, as tensors or as Python has them."""
    parts = []
    for value, share in zip(map(wide, values), shares, strict=True):
        # tf.cast would take a number of Python for a single.
        exact = share if isinstance(share, tf.Tensor) else tf.constant(share, tf.float64)
        parts.append(value * tf.cast(exact, value.dtype))
    return tf.cast(tf.add_n(parts), values[0].dtype)


def wide(value: Any) -> Any:
    """Half floats in single precision.

    As a half, a third is off by a part in a thousand: the mean of three equal numbers would be another one.
    """
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value


def weights_of(some: Sequence[int], counts: Sequence[int]) -> list[float]:
    """How much some slices count, by their sizes and those of all; the same for all would be 1.

    >>> weights_of([3, 2], [3, 3, 2])
    [1.125, 0.75]
    """
    return [count * len(counts) / sum(counts) for count in some]


def weighed(value: Any, weight: float) -> Any:
    """Halves become wide, what else counts 1 stays as it is."""
    value = wide(value)
    return value if weight == 1.0 else value * tf.constant(weight, value.dtype)


def meaningless(traced: Traced, num_replicas: int) -> Iterator[Problem]:
    """Variables that the function changes, and whose word for the replicas' values has no meaning."""
    for capture in traced.captures if num_replicas > 1 else ():
        if capture.variable is not None and capture.written and not is_random_state(capture):
            yield from without_meaning(capture.variable)


def without_meaning(variable: tf.Variable) -> Iterator[Problem]:
    """Whether the word for the replicas' values has no meaning for numbers of its kind."""
    rule, dtype = rule_of(variable), variable.dtype
    inexact = dtype.is_floating or dtype.is_complex
    if rule == "mean" and not inexact:
        said = f"has aggregation mean, and {dtype.name} has no mean"
        yield Problem("variable", variable.name, said, 'Choose "sum" or "only_first_replica", or floats')
    if rule == "sum" and not (inexact or dtype.is_integer):
        said = f"has aggregation sum, and {dtype.name} cannot be added"
        yield Problem("variable", variable.name, said, 'Choose "only_first_replica"')


def undone(assigned: Sequence[tf.Variable]) -> Iterator[Problem]:
    """Trained variables that the function assigns to, where devices update them at times of their own."""
    for variable in assigned:
        rule = "is trained, and the function assigns to it, by which a device would undo what others did"
        fix = "Use cn.Synchronous(), a kernel_constraint= for what holds after updates, or one device"
        yield Problem("variable", variable.name, rule, fix)


def is_random_state(capture: Capture) -> bool:
    """Whether this is the state of Keras's SeedGenerator, or of a tf.random.Generator."""
    return is_seed(capture.variable) or "RngReadAndSkip" in capture.used_by


def another_stream(variable: tf.Variable, replica: int) -> Any:
    """The state that gives a replica numbers of its own, repeatable from the user's seed.

    Keras's state is (seed, counter): another seed. A generator's is (counter, counter, key): another key.
    """
    state = variable.read_value()
    place = 0 if variable.shape == [2] else variable.shape.num_elements() - 1
    offset = tf.cast(replica * SEED_STRIDE, variable.dtype)
    return tf.tensor_scatter_nd_update(state, [[place]], [state[place] + offset])
