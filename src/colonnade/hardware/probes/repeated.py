"""How long work between devices takes by itself: many rounds in one call, less what a call costs."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Rounds of the short call and of the long one; each is timed so often, and the fastest counts.
FEW, MANY, TIMES = 1, 11, 3

Round = Callable[[Sequence[Any]], Sequence[Any]]


def seconds_per_round(work: Round, tensors: Sequence[Any]) -> float:
    """Seconds of one round (see `timed`)."""
    return timed(work, tensors)[0]


def timed(work: Round, tensors: Sequence[Any], many: int = MANY) -> tuple[float, list[float]]:
    """Seconds of one round, and of each tensor the first number after so `many` of them.

    Args:
        work: what is timed, made of ops: from a tensor on each device to tensors of the same shapes there. A
            round takes what the round before gave.
        tensors: with what the first round begins.
        many: rounds of the long call.
    """

    @tf.function(autograph=False)
    def rounds(number: Any, *held: Any) -> Any:
        start = (tf.constant(0), *held)
        end = tf.while_loop(
            lambda i, *_: i < number, lambda i, *now: (i + 1, *work(now)), start, parallel_iterations=1
        )
        # A number of each, so that the clock stops when all are there.
        return [tf.reshape(tensor, [-1])[0] for tensor in end[1:]]

    def fastest(number: int) -> tuple[float, list[float]]:
        took, ends = [], list[float]()
        for _ in range(TIMES):
            begin = time.perf_counter()
            ends = [value.numpy() for value in rounds(tf.constant(number), *tensors)]
            took.append(time.perf_counter() - begin)
        return min(took), [float(end) for end in ends]

    fastest(FEW)  # traced, and all connections made
    (long, ends), (short, _) = fastest(many), fastest(FEW)
    return max(long - short, 1e-9) / (many - FEW), ends
