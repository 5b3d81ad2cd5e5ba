"""The examples that train for longer than half a minute."""

import re
import sys
import time

import numpy as np
import pytest
from fresh import ROOT, run
from paired import last, output

pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", ["before", "after"])
def test_03_mnist(name):
    (accuracy,) = last(output("03_mnist", name), r"test accuracy ([\d.]+)")
    assert accuracy >= 0.97
    assert round(accuracy * 1000) == pytest.approx(accuracy * 1000)  # of 1 000 images, each counted once


@pytest.mark.parametrize("variant", [[], ["split"]], ids=["six", "split"])
def test_06_deep_lstm(variant):
    """Every layer's variables on its device, the losses of one device, and 99% of the tokens right."""
    before, after = (output("06_deep_lstm", name, *variant) for name in ("before", "after"))
    steps = r"step (\d+): loss ([\d.e-]+), accuracy ([\d.]+)"
    wanted, found = ([[float(n) for n in line] for line in re.findall(steps, t)] for t in (before, after))
    assert [line[0] for line in wanted] == [80, 160, 240]
    # Sums over micro-batches are in another order; 240 steps of Adam carry that to the third digit.
    np.testing.assert_allclose(found, wanted, rtol=0.05, atol=2e-3)
    for text in (before, after):
        assert last(text, r"token accuracy ([\d.]+)") >= [0.99]
    held = re.findall(r"(CPU:\d)  .*numbers in (.*)", after)
    assert [device for device, _ in held] == [f"CPU:{i}" for i in range(6)]
    parts = ["kernel_part_0", "kernel_part_1"]
    kinds = ["lstm"] * 4 + parts if variant else ["lstm"] * 6
    for (_, names), kind in zip(held, kinds, strict=True):
        assert kind in names
    assert "slots" in after


def test_07_sparse_autoencoder():
    """Two steps of the full size; what one device prints, eight print."""
    few = ("--steps", "2", "--batch", "16")
    before, after = (output("07_sparse_autoencoder", name, *few) for name in ("before", "after"))
    pattern = r"step 2: loss ([\d.]+)"
    assert last(after, pattern) == pytest.approx(last(before, pattern), abs=2e-4)  # four digits
    right = r"of 10 predicted items, ([\d.]+) are right"
    assert last(after, right) == pytest.approx(last(before, right), abs=0.02)
    held = {int(n): [float(m) for m in row.split()] for n, row in re.findall(r"(\d) devices: (.*)", after)}
    assert list(held) == [1, 2, 4, 8] == [len(row) for row in held.values()]
    (whole,) = held[1]
    for parts in held.values():
        assert sum(parts) == pytest.approx(whole, abs=0.5)  # MiB, each rounded to a tenth
        assert max(parts) - min(parts) < 0.005 * whole


def test_08_keras_fit():
    before, after = output("08_keras_fit", "before"), output("08_keras_fit", "after")
    pattern = r"val_accuracy: ([\d.]+) - val_loss: ([\d.]+)"
    wanted, found = (np.array(re.findall(pattern, text), float) for text in (before, after))
    assert wanted.shape == (8, 2)
    np.testing.assert_allclose(found, wanted, atol=5e-3)  # one of 360 images, or the last digits
    assert last(after, r"test loss [\d.]+, accuracy ([\d.]+)") > [0.93]


def test_12_sweep(tmp_path):
    """Twenty trials on four virtual cards, in under two minutes."""
    start = time.monotonic()
    program = str(ROOT / "examples" / "12_sweep" / "after.py")
    done = run([sys.executable, program], cwd=tmp_path, COLONNADE_LEASES=str(tmp_path / "leases"))
    seconds = time.monotonic() - start
    assert done.returncode == 0, done.stderr
    assert "20 of 20 finished" in done.stdout
    assert set(re.findall(r"begins on (virtual:\d)", done.stdout)) == {f"virtual:{i}" for i in range(4)}
    assert last(done.stdout, r"best accuracy ([\d.]+)") > [0.95]
    assert (tmp_path / "studies" / "digits" / "report.html").exists()
    assert seconds < 120
