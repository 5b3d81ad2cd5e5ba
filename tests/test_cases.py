"""A hundred random trainings on several devices against plain Keras on one; `make soak` has 3 000 more."""

import pytest
from cases import Case
from contest import differences, look


# A shape of batch is a trace, which is what a case takes: about a second of one core.
@pytest.mark.timeout(900)
def test_a_hundred_cases():
    wrong = look(100, seed=15)
    assert not wrong, "\n".join(wrong)


def test_a_difference_is_noticed(monkeypatch):
    """Broken on purpose: a step more on one of the two sides."""
    case = Case(optimizer="Adam", sizes=(3, 3))
    assert not differences(case)
    from contest import batches

    calls = []

    def broken(case):
        calls.append(case)
        return batches(case)[: len(calls)]

    monkeypatch.setattr("contest.batches", broken)
    assert "model 0 dense/kernel" in differences(case)
