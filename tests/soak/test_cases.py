"""Three thousand random trainings, a hundred a piece: see contest.py. The seed is that of the piece."""

import os

import pytest
from contest import look

SHARE = int(os.environ.get("COLONNADE_SOAK", "1"))


@pytest.mark.parametrize("seed", range(1000, 1030))
def test_three_thousand_cases(record_property, seed):
    count = max(1, 100 // SHARE)
    print(f"python tests/cases.py survey {count} {seed}")
    wrong = look(count, seed=seed)
    record_property("cases", count)
    record_property("wrong", len(wrong))
    assert not wrong, "\n".join(wrong)
