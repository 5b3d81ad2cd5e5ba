import pytest
import tensorflow as tf

from colonnade.run.asynchronous.int_tensors import BLOCK, IntTensors


@pytest.mark.parametrize(
    "asked",
    [
        range(3 * BLOCK),
        [0, BLOCK, BLOCK - 1, 2 * BLOCK + 1, 3, 3, 10**12, 0],  # forwards, backwards, and far away
    ],
)
def test_every_number_is_itself_in_any_order(asked):
    numbers = IntTensors()
    tensors = [numbers[number] for number in asked]
    assert [int(tensor) for tensor in tensors] == list(asked)
    assert {(tensor.dtype, tensor.shape.rank) for tensor in tensors} == {(tf.int64, 0)}
