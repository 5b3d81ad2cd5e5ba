"""One error, with the user's line, for what fails on slices alone."""

import re

import pytest

from colonnade.errors import InvalidArgument
from colonnade.run.model.user_line import Failures


def reshaped(rows):
    if rows != 8:
        raise ValueError("cannot reshape")  # this line


def told(rows, whole=8):
    failures = Failures()

    def traced(count):
        with failures.noted():
            reshaped(count)

    with failures.told("fit()", "net", [rows, rows], lambda: traced(whole)):
        traced(rows)


def test_what_fails_on_slices_is_told_with_its_line():
    with pytest.raises(InvalidArgument) as caught:
        told(4)
    said = str(caught.value)
    assert "model='net': does not take a slice of 4 examples: cannot reshape (at " in said
    assert re.search(r'test_user_line\.py:\d+: raise ValueError\("cannot reshape"\)  # this line\)', said)


def test_what_fails_on_the_whole_batch_too_is_the_users_own_error():
    with pytest.raises(ValueError, match="cannot reshape") as caught:
        told(4, whole=5)
    assert not isinstance(caught.value, InvalidArgument)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda rows: 8 // (rows // 8), "integer division or modulo by zero"),
        (lambda rows: {8: 1}[rows], "KeyError: 4"),
        (lambda rows: [*range(rows)][5], "list index out of range"),
    ],
)
def test_whatever_a_small_slice_leads_to_is_told(mistake, said):
    failures = Failures()

    def traced(count):
        with failures.noted():
            mistake(count)

    says = rf"slice of 4 examples: {said} \(at .*split=.*per_device=True"
    with (
        pytest.raises(InvalidArgument, match=says),
        failures.told("fit()", "net", [4, 4], lambda: traced(8)),
    ):
        traced(4)


def test_what_works_is_left_alone():
    told(8)
