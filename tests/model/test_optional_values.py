"""What a generator leaves out is None, wherever it is in a batch."""

import tensorflow as tf

from colonnade.run.model.optional_values import without_optionals

NOTHING = tf.experimental.Optional.empty(None)


def test_nothing_is_none_in_batches_and_in_their_specs():
    x = tf.ones([2])
    assert without_optionals((x, NOTHING)) == (x, None)
    assert without_optionals(({"a": x, "b": NOTHING}, [NOTHING])) == ({"a": x, "b": None}, [None])
    spec = tf.TensorSpec([2]), tf.OptionalSpec(None)
    assert without_optionals(spec) == (tf.TensorSpec([2]), None)


def test_a_batch_that_has_all_stays_the_same_object():
    batch = (tf.ones([2]), None)
    assert without_optionals(batch) is batch
