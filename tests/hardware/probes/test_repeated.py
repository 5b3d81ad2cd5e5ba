"""Seconds of a round, without what a call costs."""

import pytest
import tensorflow as tf

from colonnade.hardware.probes import repeated


def test_rounds_go_on_from_each_other_and_the_call_is_not_counted(monkeypatch):
    """A clock that a call moves by 5 seconds, and each of its rounds by 2."""
    seen = []
    clock = {"now": 0.0}

    def tick(x):
        seen.append(float(x))
        clock["now"] += 2
        return x + 1

    class Clock:
        @staticmethod
        def perf_counter():
            clock["now"] += 2.5  # at the beginning of a call, and at its end
            return clock["now"]

    monkeypatch.setattr(repeated, "time", Clock)

    def work(held):
        return [tf.numpy_function(tick, held, tf.float32)]

    with tf.device("/device:CPU:0"):
        took = repeated.seconds_per_round(lambda held: [tf.ensure_shape(t, []) for t in work(held)], [0.0])
    assert took == pytest.approx(2.0)
    assert max(seen) == repeated.MANY - 1  # each took what the one before gave
