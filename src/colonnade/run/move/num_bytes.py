"""How many bytes a tensor takes, as far as its shape tells."""

from typing import Any


def num_bytes(tensor: Any) -> int:
    """Bytes of a tensor, of a variable, or of what a spec stands for; 0 where the shape is not known.

    Example:
        >>> import tensorflow as tf
        >>> num_bytes(tf.zeros([3, 5])), num_bytes(tf.TensorSpec([None, 5]))
        (60, 0)
    """
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size or 0)
