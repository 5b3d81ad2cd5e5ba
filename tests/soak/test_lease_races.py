"""Five hundred races of eight processes for four cards, with kills: see races.py for the witnesses."""

import json
import sys

import pytest
from fresh import ROOT, run

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("seed", range(2026, 2031))
def test_five_times_a_hundred_races(tmp_path, record_property, seed):
    done = run(
        [sys.executable, str(ROOT / "tests" / "races.py"), str(tmp_path), "100", str(seed)], timeout=900
    )
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)
    for name, number in total.items():
        record_property(name, number)
    assert total["races"] == 100
    assert total["killed"] > 60
    assert total["leased"] + total["killed"] >= 100 * 8
    assert total["waited"] > total["leased"] / 3, "hardly a race"
