import re

from fresh import COMMAND, run


def test_demo():
    done = run([COMMAND, "demo"], PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"\| +(\d) \| +([\d,]+) \| +([\d.]+) \| +([\d.]+)% \|", done.stdout)
    (first, _, same, one), (num_devices, _, _, every) = shown
    assert (first, same) == ("1", "1.00")
    assert int(num_devices) >= 2
    assert min(float(one), float(every)) > 95
    assert re.search(r"medians of \d turns; the speed-up of a turn was [\d.]+ to [\d.]+", done.stdout)
    # Sums of float32 in another order, over 120 steps: as far apart as on one device, whatever its kernels.
    difference, rounding = (
        float(re.search(rf"{words}: (\S+)", done.stdout).group(1)) for words in ("the two", "another order")
    )
    assert 0 < difference < 4 * rounding < 1e-2
    assert re.search(r"0 +\| CPU:0 +\| CPU:0", done.stdout)
    assert re.search(r"1 +\| CPU:1 +\| CPU:1", done.stdout)
    assert "Try next" in done.stdout
