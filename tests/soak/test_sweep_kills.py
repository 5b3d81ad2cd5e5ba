"""Two hundred kills of sweeps and of what they started: see swept.py for what must hold."""

import os

import pytest
from swept import main

pytestmark = pytest.mark.alone

SHARE = int(os.environ.get("COLONNADE_SOAK", "1"))


@pytest.mark.parametrize("seed", [2026, 2027, 2028, 2029])
def test_four_times_fifty_kills(tmp_path, record_property, seed):
    wanted = max(1, 50 // SHARE)
    total = main(tmp_path / "hunt", wanted, seed)
    for name, number in total.items():
        record_property(name, number)
    assert total["kills"] >= wanted
    assert total["complete"] + total.get("failed", 0) + total.get("pruned", 0) == total["trials"]
    assert SHARE > 1 or total["kills of a sweep"] < total["kills"] < total["begun"]
