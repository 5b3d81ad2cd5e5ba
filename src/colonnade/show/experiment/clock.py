"""The speed of the modes on this machine for the experiment's page, measured in another process and kept."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

FILE = "time.json"


@dataclass(frozen=True)
class Time:
    """Examples per second in every round, by pace and mode; or why there are none."""

    cores: int
    devices: int
    rates: dict[str, dict[str, list[float]]]
    why_not: str | None = None

    def rows(self) -> list[tuple[str, list[str]]]:
        """For each mode and pace: examples per second, and how many times synchronous in the same round."""
        return [(mode, [self._cell(pace, mode) for pace in self.rates]) for mode in self.rates["even"]]

    def _cell(self, pace: str, mode: str) -> str:
        own, synchronous = self.rates[pace][mode], self.rates[pace]["synchronous"]
        ratios = sorted(a / b for a, b in zip(own, synchronous, strict=True))
        rate = f"{median(own):,.0f}"
        if mode == "synchronous":
            return rate
        return f"{rate} ({median(ratios):.2f} times; {ratios[0]:.2f} to {ratios[-1]:.2f})"


def clocked(folder: Path, *, quick: bool) -> Time:
    """What was measured before, or is measured now: on as many devices as have a core of their own."""
    file = folder / FILE
    if not file.exists():
        file.write_text(json.dumps(asdict(_measured(quick=quick))))
    return Time(**json.loads(file.read_text()))


def _measured(*, quick: bool) -> Time:
    cores = len(os.sched_getaffinity(0))
    devices = min(cores, 8)
    if devices < 2:
        return Time(cores, devices, {}, "this machine has one core, and nothing runs in parallel on it")
    if find_spec("tensorflow") is None:
        return Time(cores, devices, {}, "TensorFlow is not installed")
    rounds, seconds = ("1", "0.1") if quick else ("5", "2")
    command = [sys.executable, "-m", "colonnade.experiment.walltime", str(devices), rounds, seconds]
    quiet = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return Time(cores, devices, {}, f"the measurement ended with exit code {done.returncode}: {said}")
    return Time(cores, devices, json.loads(done.stdout.splitlines()[-1]))
