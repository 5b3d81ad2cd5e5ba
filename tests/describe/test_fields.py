import json

import pytest

from colonnade.describe import fields
from colonnade.describe.fields import number, one_of, optional, shown, whole_from
from colonnade.errors import InvalidArgument


@pytest.mark.parametrize("value", [True, "1", None, -1, -0.5, float("nan"), float("inf"), 1e31, 10**400, [1]])
def test_what_is_no_number(value):
    assert not number(value)


@pytest.mark.parametrize("value", [0, 0.0, 3, 1e30, 2**60])
def test_what_is_a_number(value):
    assert number(value)


def test_rules_say_what_they_want_and_none_may_be_one_of_them():
    assert optional(whole_from(1)).holds(None)
    assert not whole_from(1).holds(None)
    assert not whole_from(1).holds(0)
    assert not one_of("a", "b").holds(["a"])
    wrong = list(fields.amiss({"n": whole_from(2)}, {"n": 1}, "layers[0]."))
    assert [str(problem) for problem in wrong] == ["layers[0].n=1: must be a whole number from 2 up. Try 2."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1", "is not JSON"),
        ("[1]", "must be an object of JSON"),
        ('{"version": NaN}', "NaN is no number"),
        ('{"version": 2}', "must be 1"),
        ('{"version": true}', "must be 1"),
        ("{}", "must be 1"),
        (7, "must be a text of JSON"),
        ("[" * 200_000, "is not JSON"),
    ],
)
def test_a_text_that_is_none_is_one_error(text, said):
    with pytest.raises(InvalidArgument, match=said):
        fields.loaded(text, "from_json()", 1)


def test_the_version_is_not_among_what_was_loaded():
    assert fields.loaded(json.dumps({"version": 3, "a": 1}), "from_json()", 3) == {"a": 1}


def test_long_values_are_cut_in_messages():
    assert len(str(shown("x" * 1000))) < 70
    assert shown(10**30) == "a number of more than 18 digits"
    assert len(str(shown(["y" * 1000]))) < 90
