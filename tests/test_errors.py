"""The errors that Colonnade raises on purpose: their tree as it is drawn, and what a mistake is told like."""

import re

import numpy as np
import pytest
import tensorflow as tf

from colonnade import errors
from colonnade.errors import ColonnadeError, InvalidArgument, Problem, check, is_whole, whole

BAD = Problem("devices", 0, "must be at least 1", "Leave it out for all devices")


def test_the_drawn_tree_is_the_real_one():
    drawn = dict(re.findall(r"[├└]── (\w+) \((\w+)\)", errors.__doc__))
    # Those that no user sees have a line before them.
    seen = [cls for cls in ColonnadeError.__subclasses__() if not cls.__name__.startswith("_")]
    assert drawn == {cls.__name__: cls.__bases__[1].__name__ for cls in seen}
    assert all(cls.__bases__[0] is ColonnadeError for cls in seen)


def test_a_problem_has_four_parts():
    assert str(BAD) == "devices=0: must be at least 1. Leave it out for all devices."


def test_all_problems_come_in_one_error():
    other = Problem("join", "average", "must be one of mean, sum", "Leave it out")
    with pytest.raises(InvalidArgument) as caught:
        check("Trainer()", iter([BAD, other]))
    assert caught.value.problems == (BAD, other)
    assert str(caught.value).splitlines() == ["Trainer() cannot work with:", f"  {BAD}", f"  {other}"]


def test_without_a_problem_nothing_is_raised():
    check("Trainer()", iter([]))


def test_what_is_in_the_way_is_told_with_a_way_out():
    assert "colonnade leases" in str(errors.LeaseTimeout(2, 1))
    assert "process 7 on host" in str(errors.CheckpointInUse("runs/a", 7, "host"))
    assert "another process" in str(errors.CheckpointInUse("runs/a", None, None))
    assert "step 3 could not be saved in runs/a" in str(errors.DiskFull("runs/a", 3))
    damaged = errors.DamagedCheckpoint("runs/a", {"step-3": "is torn"})
    assert "step-3: is torn" in str(damaged)


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
