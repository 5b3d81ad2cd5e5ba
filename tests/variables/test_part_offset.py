"""Where parts belong in the variable that they are parts of."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.variables.part_offset import mark, mark_slots, slice_of


def parts(sizes, axis, rows=4):
    """Consecutive parts of a matrix, whose numbers are counted up."""
    whole = np.arange(rows * sum(sizes), dtype="float32")
    whole = whole.reshape([rows, -1] if axis == 1 else [-1, rows])
    pieces = np.split(whole, np.cumsum(sizes)[:-1], axis=axis)
    made = [tf.Variable(piece, name=f"kernel_part_{i}") for i, piece in enumerate(pieces)]
    mark(made, axis)
    return whole, made


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 2, 2), (7,), (1, 6)])
def test_tensorflow_reads_the_whole_from_what_was_written_in_parts(tmp_path, sizes, axis):
    whole, made = parts(sizes, axis)
    prefix = str(tmp_path / "saved")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["kernel"] * len(made),
        shape_and_slices=[slice_of(part).of(part.shape) for part in made],
        tensors=[part.read_value() for part in made],
    )
    (read,) = tf.raw_ops.RestoreV2(
        prefix=prefix, tensor_names=["kernel"], shape_and_slices=[""], dtypes=[tf.float32]
    )
    np.testing.assert_array_equal(read, whole)


def test_a_variable_by_itself_is_no_part():
    assert slice_of(tf.Variable(1.0)) is None


def test_slots_of_the_shape_of_a_part_are_parts_too():
    _, made = parts((3, 2), 1)
    other = tf.Variable(tf.zeros([4, 3]), name="kernel")
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([*made, other])
    slots = [variable.value for variable in optimizer.variables]
    mark_slots([*made, other], slots)
    cut = {variable.name: slice_of(variable.value) for variable in optimizer.variables}
    for i, part in enumerate(made):
        assert cut[f"kernel_part_{i}_0_momentum"] == slice_of(part)
        assert cut[f"kernel_part_{i}_0_velocity"] == slice_of(part)
    assert cut["kernel_0_momentum"] is None
    assert cut["iteration"] is None
