import pytest
import tensorflow as tf

from colonnade.run.move.num_bytes import num_bytes


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (3, 5), (4, 0)])
def test_as_many_as_numpy_says(dtype, shape):
    tensor = tf.zeros(shape, dtype)
    array = tensor.numpy()
    assert num_bytes(tensor) == num_bytes(tf.Variable(tensor)) == array.nbytes
    assert num_bytes(tf.TensorSpec(shape, dtype)) == array.nbytes


def test_none_of_what_is_not_known():
    assert num_bytes(tf.TensorSpec(None)) == num_bytes(tf.TensorSpec([None, 3])) == 0
