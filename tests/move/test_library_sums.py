"""Sums by collectives, here with TensorFlow's own ring: right, in several buckets, each with its own key."""

import numpy as np
import tensorflow as tf

from colonnade.hardware.probes import collective
from colonnade.run.move.library_sums import LibrarySums, can_sum

DEVICES = [f"/device:CPU:{i}" for i in range(3)]


def test_sums_in_several_buckets_and_graphs_are_those_of_numpy(monkeypatch):
    monkeypatch.setattr(collective, "HINT", "ring")
    rng = np.random.default_rng(0)
    shapes = ((3, 4), (), (50,))
    rows = [[rng.normal(size=shape).astype("float32") for shape in shapes] for _ in DEVICES]
    rows = [[*row, rng.normal(size=5)] for row in rows]
    library = LibrarySums(DEVICES)
    keys = []
    for largest in (10**6, 100):  # a graph each

        @tf.function(autograph=False)
        def sums(largest=largest):
            held = []
            for device, row in zip(DEVICES, rows, strict=True):
                with tf.device(device):
                    held.append([tf.constant(value) for value in row])
            return library.sums(held, largest=largest)

        graph = sums.get_concrete_function().graph
        nodes = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
        keys += [int(tf.get_static_value(op.inputs[3])) for op in nodes]
        # Each device in an order of its own, which does not hold up the others.
        for device in DEVICES:
            own = [op for op in nodes if op.device.endswith(device)]
            assert len({op.inputs[4].ref() for op in own}) == 1
        assert len({op.inputs[4].ref() for op in nodes}) == len(DEVICES)
        for own in sums():
            for i, total in enumerate(own):
                np.testing.assert_allclose(total, sum(row[i] for row in rows), rtol=1e-5)
    # Two buckets in the first graph, one of each dtype; in the second 3 of 252 bytes, and one.
    assert len(keys) == 3 * (2 + 4)
    assert len(set(keys)) == 2 + 4


def test_what_the_library_knows():
    assert can_sum([tf.ones([], tf.bfloat16), tf.ones([], tf.int64)])
    assert not can_sum([tf.ones([], tf.float32), tf.ones([], tf.int8)])
