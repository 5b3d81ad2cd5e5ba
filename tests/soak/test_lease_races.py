"""Five hundred races of eight processes for four cards, with kills: see races.py for the witnesses."""

import json
import sys

import pytest
from fresh import ROOT, run

pytestmark = pytest.mark.alone


def test_five_hundred_races(tmp_path):
    done = run([sys.executable, str(ROOT / "tests" / "races.py"), str(tmp_path), "500", "2026"], timeout=900)
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)
    print(total)
    assert total["races"] == 500
    assert total["killed"] > 300
    assert total["leased"] + total["killed"] >= 500 * 8
    assert total["waited"] > total["leased"] / 3, "hardly a race"
