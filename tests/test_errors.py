"""Whole numbers, of which every check of a count asks."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.errors import InvalidArgument, check, is_whole, whole


@pytest.mark.parametrize("value", [True, False, 2.0, "2", None, [2], np.array([2]), np.array(2.0), np.True_])
def test_what_is_no_whole_number(value):
    assert not is_whole(value)
    assert not is_whole(value, numpy=True)


@pytest.mark.parametrize("value", [np.int64(2), np.uint8(2), np.array(2), tf.constant(2)])
def test_numpys_integers_are_taken_where_they_are_asked_for(value):
    assert not is_whole(value)
    assert is_whole(value, 1, 2, numpy=True) is True
    assert is_whole(value, 3, numpy=True) is False


def test_both_ends_are_in_the_range():
    assert [value for value in range(-2, 6) if is_whole(value, 0, 3)] == [0, 1, 2, 3]
    assert is_whole(-7)
    assert is_whole(10**30, 1)


def test_a_problem_names_argument_value_rule_and_fix():
    assert list(whole("steps", 1, 1, like=10)) == []
    with pytest.raises(InvalidArgument) as error:
        check("fit()", whole("steps", 0, 1, like=10))
    assert str(error.value).splitlines()[1].strip() == (
        "steps=0: must be a whole number from 1 up. Try steps=10."
    )
