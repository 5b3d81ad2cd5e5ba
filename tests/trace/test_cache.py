"""A function is traced once for arguments of one shape, and once for each replica only where it must be."""

import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.traced import Traced

DEVICES = ("/device:CPU:0", "/device:CPU:1")


def cache(fn, **options):
    made = []

    def make(part, voice):
        made.append(voice)
        return Traced(fn, part, voice)

    return TraceCache(make, DEVICES, **options), made


def rows(count):
    return Arguments((tf.TensorSpec([count, 2]),), {})


def test_one_trace_serves_all_replicas():
    traces, made = cache(lambda x: 2 * x)
    assert rows(3) not in traces
    assert traces.of_replica(rows(3), 0, 2) is traces.of_replica(rows(3), 1, 2)
    assert traces.of_micro_batch(rows(3), 5, 8) is traces.get(rows(3))
    assert rows(3) in traces
    traces.get(rows(4))
    assert made == [None, None]
    assert len(list(traces)) == 2


def test_replicas_that_draw_seeded_numbers_have_a_trace_each():
    tf.random.set_seed(1)
    traces, made = cache(lambda x: x + tf.random.uniform([2], seed=3))
    assert traces.of_replica(rows(3), 0, 2) is not traces.of_replica(rows(3), 1, 2)
    assert [voice and voice.replica for voice in made] == [None, 0, 1]
    assert traces.of_replica(rows(3), 0, 1) is traces.get(rows(3))  # alone it needs none of its own


def test_another_version_has_traces_of_its_own():
    version = [1]
    traces, made = cache(lambda x: 2 * x, version=lambda: version[0])
    traces.get(rows(3))
    version[0] = 2
    traces.get(rows(3))
    assert len(made) == 2


def test_all_can_be_forgotten():
    traces, made = cache(lambda x: 2 * x)
    first = traces.get(rows(3))
    traces.forget()
    assert traces.get(rows(3)) is not first
    assert len(made) == 2
