"""What a batch of Keras's leaves out: its generators say None by an empty `tf.experimental.Optional`."""

from typing import Any

import tensorflow as tf

from colonnade.run.batch.split import flatten, pack

# In a batch, and in what a dataset says of its batches.
OPTIONAL = (tf.experimental.Optional, tf.OptionalSpec)


def without_optionals(data: Any) -> Any:
    """A batch, or the specs of one, with None where there is nothing, as Keras hands it to its own steps."""
    leaves = [leaf for _, leaf in flatten(data)]
    if not any(isinstance(leaf, OPTIONAL) for leaf in leaves):
        return data
    return pack(data, iter([None if isinstance(leaf, OPTIONAL) else leaf for leaf in leaves]))
