"""A change of any element of any variable is seen, and nothing else is."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.variables import digests
from colonnade.run.variables.digests import Digests, can_digest


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "bool"]
)
def test_every_element_counts(dtype, monkeypatch):
    monkeypatch.setattr(digests, "PIECE", 4)
    variables = [tf.Variable(tf.cast(tf.zeros([3, 3]), dtype)), tf.Variable(tf.cast(1, dtype))]
    seen = Digests(variables)
    before = seen.now()
    assert np.array_equal(seen.now(), before)
    for i in range(9):
        variables[0].assign(tf.cast(tf.reshape(tf.one_hot(i, 9), [3, 3]), dtype))
        assert list(seen.now() != before) == [True, False]
    variables[0].assign(tf.zeros_like(variables[0]))
    assert np.array_equal(seen.now(), before)


def test_an_exchange_a_sign_and_the_smallest_step_are_changes():
    value = np.arange(1, 9, dtype="float32")
    variable = tf.Variable(value)
    seen = Digests([variable])
    before = seen.now()
    for other in (value[::-1], -value, np.nextafter(value, np.float32(9)), value + 2**-20):
        variable.assign(other)
        assert seen.now() != before


def test_equal_variables_have_digests_of_their_own():
    first, second = Digests([tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])]).now()
    assert first != second  # so that values which two of them exchange are seen as well


def test_what_has_no_bits_to_add():
    assert not can_digest(tf.Variable("text"))
    assert not can_digest(tf.Variable(1j))
    assert not can_digest(tf.Variable([1.0], shape=[None]))
    assert Digests([]).now().size == 0


def test_one_piece_of_a_device_waits_for_the_one_before(monkeypatch):
    """Else what is computed on the way of all variables would be there at once."""
    monkeypatch.setattr(digests, "PIECE", 4)
    variables = []
    for device in ("/device:CPU:0", "/device:CPU:1"):
        with tf.device(device):
            variables += [tf.Variable(tf.zeros([size])) for size in (3, 9, 4)]
    graph = Digests(variables)._made.get_concrete_function().graph
    for device in ("CPU:0", "CPU:1"):
        here = [op for op in graph.get_operations() if op.device.endswith(device)]
        sums = [op for op in here if op.type == "Sum"]
        # What takes memory: what is drawn, and what is made of the elements.
        drawn = [op for op in here if op.type.startswith("StatelessRandomUniform")]
        cast = [op for op in here if op.type == "Cast"]
        assert len(sums) == len(drawn) == len(cast) == 5
        for before, *later in zip(sums, drawn[1:], cast[1:], strict=False):
            assert all(before in ancestors(op) for op in later)


def ancestors(op):
    """All that an op waits for."""
    seen, waiting = set(), [op]
    while waiting:
        one = waiting.pop()
        above = {*one.control_inputs, *(tensor.op for tensor in one.inputs)} - seen
        seen |= above
        waiting += above
    return seen
