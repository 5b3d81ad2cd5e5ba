"""Sums with the traffic of a ring: right, the same on all devices, and each moves as much."""

import re
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.move.ring import ring_sums

DEVICES = [f"/device:CPU:{i}" for i in range(8)]


def gradients(device, rng=None):
    rng = np.random.default_rng(device)
    wide = [rng.normal(size=shape).astype("float32") for shape in ((3, 4), (), (5,), (1000,))]
    return [tf.constant(value) for value in [*wide, rng.normal(size=(7, 3))]]


@pytest.mark.parametrize(("working", "devices"), [(2, 2), (3, 3), (4, 4), (8, 8), (2, 4), (1, 2)])
@pytest.mark.parametrize("everywhere", [True, False])
def test_sums_are_those_of_numpy_and_bit_equal_on_all_devices(working, devices, everywhere):
    rows = [gradients(d) for d in range(working)]
    run = tf.function(
        lambda: ring_sums(rows, DEVICES[:devices], everywhere=everywhere, largest=400), autograph=False
    )
    sums = run()
    assert len(sums) == (devices if everywhere else 1)
    for own in sums:
        for i, total in enumerate(own):
            expected = np.sum([np.asarray(row[i]) for row in rows], axis=0)
            np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
            assert total.shape == rows[0][i].shape
            assert np.array_equal(total, sums[0][i])


def graph(num_devices, shapes):
    """The graph of the sums of placeholders called device_gradient."""
    with tf.Graph().as_default() as built:
        rows = []
        for d in range(num_devices):
            with tf.device(DEVICES[d]):
                rows.append(
                    [tf.compat.v1.placeholder(tf.float32, s, name=f"{d}_{i}") for i, s in enumerate(shapes)]
                )
        ring_sums(rows, DEVICES[:num_devices], everywhere=True)
    return built


@pytest.mark.parametrize("num_devices", [2, 3, 4, 8])
def test_every_device_sends_and_gets_the_bytes_of_a_ring(num_devices):
    """2 (n - 1) / n of the gradients, by the edges of the graph that cross devices."""
    numbers = 840 * num_devices
    sent, got = Counter(), Counter()
    for op in graph(num_devices, [[100], [numbers - 100]]).get_operations():
        for tensor in op.inputs:
            if tensor.op.device != op.device and tensor.dtype == tf.float32:
                sent[tensor.op.device] += tensor.shape.num_elements()
                got[op.device] += tensor.shape.num_elements()
    expected = 2 * (num_devices - 1) / num_devices * numbers
    assert len(sent) == num_devices
    assert set(sent.values()) == set(got.values()) == {expected}


def test_a_bucket_waits_for_its_own_gradients_alone():
    """The first bucket has the last gradients, which a backward pass makes first."""
    built = graph(4, [[10]] * 8)
    waits = {}
    for op in built.get_operations():
        found = re.match(r"reduction_(\d+)_from", op.name)
        if found and op.type == "AddV2":
            waits.setdefault(int(found[1]), set()).update(_needs(op))
    assert waits == {b: {str(7 - 2 * b), str(6 - 2 * b)} for b in range(4)}


def _needs(op):
    if op.type == "Placeholder":
        return {op.name.split("_")[1]}
    above = [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return set().union(*map(_needs, above)) if above else set()
