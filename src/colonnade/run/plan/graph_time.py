"""Seconds of a piece of a graph, run many times in one call: as in the loop of a training, without Python."""

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# A piece is timed for about so long, in rounds; the fastest round counts.
SECONDS, ROUNDS = 0.8, 4


def graph_time(piece: Callable[[], Any]) -> float:
    """Seconds of a piece of a graph: of all that its tensors need, whether they are used or not.

    >>> graph_time(lambda: tf.ones([8, 8]) @ tf.ones([8, 8])) < 1
    True
    """

    def turn(done: Any, seen: Any) -> Any:
        made = [leaf for leaf in tf.nest.flatten(piece(), expand_composites=True) if tf.is_tensor(leaf)]
        # What nobody looks at is not computed.
        looked_at = [tf.cast(tf.reshape(leaf, [-1])[:1], tf.float64) for leaf in made]
        return done + 1, seen + tf.reduce_sum(tf.concat(looked_at, axis=0))

    @tf.function(autograph=False)
    def many(times: Any) -> Any:
        start = tf.constant(0), tf.constant(0.0, tf.float64)
        return tf.while_loop(lambda done, _: done < times, turn, start, parallel_iterations=1)

    many(tf.constant(1))
    once = _seconds(lambda: many(tf.constant(2))) / 2
    count = max(2, int(SECONDS / ROUNDS / max(once, 1e-6)))
    times = tf.constant(count)
    return min(once, *(_seconds(lambda: many(times)) / count for _ in range(ROUNDS)))


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    tf.nest.flatten(call())[-1].numpy()  # on a card, only what has arrived here has been computed
    return time.perf_counter() - begin
