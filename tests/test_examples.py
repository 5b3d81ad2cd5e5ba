"""Every example runs, and the two of a pair print the same result."""

import re
import sys

from fresh import ROOT, run

PAIRS = sorted(path.parent.name for path in (ROOT / "examples").glob("*/before.py"))


def output(pair, name):
    done = run([sys.executable, f"examples/{pair}/{name}.py"])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_pairs():
    assert "01_make_parallel" in PAIRS
    assert "02_basics" in PAIRS


def test_01_make_parallel():
    for name in ("before", "after"):
        assert "w = [5. 0. 3.]" in output("01_make_parallel", name).replace("-0.", "0.")


def test_02_basics():
    before, after = output("02_basics", "before"), output("02_basics", "after")
    total = re.search(r"sum [\d.]+", before).group()
    assert total in after
    matmuls = re.findall(r"MatMul +│ (CPU:\d) +│ (CPU:\d)", after)
    assert sorted(set(matmuls)) == [("CPU:0", "CPU:0"), ("CPU:1", "CPU:1")]
    assert len(matmuls) == 18
    assert re.search(r"AddV2 +│ CPU:0 +│ CPU:0", after)
