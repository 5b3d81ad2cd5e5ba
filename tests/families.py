"""Families of cases of which `make test` runs some; `make soak` runs the others, which are marked long."""

from collections.abc import Iterable
from typing import Any

import pytest


def long(*cases: Any) -> list[Any]:
    """These cases, as long ones; a tuple is one case of several arguments."""
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.long) for c in cases]


def kept(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """All cases, of which only the chosen ones are not long."""
    cases = list(cases)
    assert all(case in cases for case in chosen), chosen
    return [case if case in chosen else long(case)[0] for case in cases]
