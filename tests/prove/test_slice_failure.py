"""What only slices raise when they run is told; a user's own mistake, and that of something else, are not."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from colonnade.errors import InvalidArgument
from colonnade.run.prove.slice_failure import WHOLE, told

TABLE = tf.constant([1.0, 2.0, 3.0, 4.0])


class Looked:
    """At a batch of so many rows, and at slices of so many."""

    def __init__(self, rows, of_slice):
        self.rows, self.of_slice = rows, of_slice

    @property
    def one(self):
        return tf.gather(TABLE[: self.rows], 3)

    @property
    def several(self):
        return tf.gather(TABLE[: self.of_slice], 3)


def failing(look, **more):
    with told("fit()", "net", lambda: look, **more):
        tf.gather(TABLE, 7)


def test_what_only_slices_raise_is_told_in_a_line():
    with pytest.raises(InvalidArgument) as caught:
        failing(Looked(4, 2))
    said = str(caught.value)
    assert (
        "model='net': takes the batch as a whole, and fails in slices: indices = 3 is not in [0, 2). " in said
    )
    assert "split=[...]" in said
    assert "[Op:" not in said
    with pytest.raises(InvalidArgument, match=r"cn\.broadcast"):
        failing(Looked(4, 2), fix=WHOLE)


@pytest.mark.parametrize("look", [Looked(3, 2), Looked(4, 4)])
def test_what_one_device_raises_and_what_is_of_something_else_stays_as_it_is(look):
    with pytest.raises(tf.errors.InvalidArgumentError, match="= 7 is not in"):
        failing(look)


def test_nothing_is_looked_at_where_nothing_is_raised():
    with told("fit()", "net", SimpleNamespace):
        pass
