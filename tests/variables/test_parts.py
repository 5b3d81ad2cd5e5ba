"""Tensors and variables in parts on several devices, which are one thing to those outside."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.variables.parts import Logical, Parts, give_home, home_of, joined

WHOLE = np.arange(12.0).reshape(2, 6)
DEVICES = ("/device:CPU:1", "/device:CPU:2", "/device:CPU:3")


def in_parts(whole=WHOLE):
    pieces = np.split(whole, [3, 5], axis=1)
    return Parts(tuple(tf.constant(piece) for piece in pieces), DEVICES)


def test_a_tensor_in_parts_knows_where_they_begin():
    parts = in_parts()
    assert (parts.sizes, parts.starts, parts.width) == ((3, 2, 1), (0, 3, 5), 6)


def test_it_is_gathered_on_the_first_device_with_its_gradient():
    pieces = [tf.constant(piece) for piece in np.split(WHOLE, [3, 5], axis=1)]
    with tf.GradientTape() as tape:
        tape.watch(pieces)
        whole = joined(pieces, DEVICES[0])
        loss = tf.reduce_sum(whole**2)
    assert whole.device.endswith("CPU:1")
    np.testing.assert_array_equal(whole, WHOLE)
    np.testing.assert_array_equal(tf.concat(tape.gradient(loss, pieces), axis=1), 2 * WHOLE)
    np.testing.assert_array_equal(in_parts().gather(), WHOLE)


def test_it_is_no_tensor_by_mistake():
    with pytest.raises(cn.InvalidArgument, match=r"Parts of \(3, 2, 1\).*parts\.gather\(\)"):
        tf.convert_to_tensor(in_parts())


def logical(axis=1, dtype="float32", sizes=(3, 2, 1)):
    pieces = np.split(np.zeros((2, 6)), np.cumsum(sizes)[:-1], axis=axis)
    return Logical("kernel", [keras.Variable(piece, dtype=dtype) for piece in pieces], axis, "load()")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_variable_in_parts_is_saved_as_one_whatever_its_parts(dtype):
    first, second = logical(dtype=dtype), logical(dtype=dtype, sizes=(1, 5))
    first.assign(WHOLE)
    second.deserialize(first.serialize())
    assert first.shape == second.shape == (2, 6)
    for variable in (first, second):
        np.testing.assert_array_equal(np.asarray(variable.numpy(), "float64"), WHOLE)
    np.testing.assert_array_equal(np.asarray(second.parts[0].numpy(), "float64"), WHOLE[:, :1])


def test_one_of_another_shape_is_refused_and_changes_nothing():
    variable = logical()
    with pytest.raises(cn.InvalidArgument, match=r"kernel=\(2, 7\): its shape must be \(2, 6\)"):
        variable.assign(np.ones((2, 7)))
    assert not variable.numpy().any()


def test_a_part_may_have_a_home():
    variable = tf.Variable(1.0)
    assert home_of(variable) is None
    give_home(variable, "/device:CPU:5")
    assert home_of(variable) == "/device:CPU:5"
