"""The benchmarks run; how fast anything is, is not tested here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_width_gives_a_ratio() -> None:
    program = BENCHMARKS / "width" / "main.py"
    done = subprocess.run(
        [sys.executable, str(program), "--quick"], capture_output=True, text=True, timeout=300
    )
    assert not done.returncode, done.stderr
    assert "a step on two devices against one device" in done.stdout


def test_throughput_gives_ratios(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    program = BENCHMARKS / "throughput" / "main.py"
    options = ["--quick", "--models", "polynomial", "--devices", "2", "--results", str(results)]
    done = subprocess.run(
        [sys.executable, str(program), *options], capture_output=True, text=True, timeout=300
    )
    assert not done.returncode, done.stderr
    rounds = json.loads(results.read_text())["contests"]["polynomial 2"]
    assert {"colonnade", "mirrored", "towers", "session", "single"} <= set(rounds)
    assert all(len(figures) == 2 for figures in rounds.values())
    assert all(figures[0]["step"] > 0 and figures[0]["first"] > 0 for figures in rounds.values())
    for text in ("2 devices against MirroredStrategy: polynomial", "against compat.v1 program"):
        assert text in done.stdout


def test_prediction_gives_errors() -> None:
    """The tables; and that no table of times or of memory has become much worse than it was."""
    program = BENCHMARKS / "prediction" / "main.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    scores = dict(re.findall(r"^\| ([\w, ]+) \| \d+ \| ([\d.]+)% ", done.stdout, re.M))
    assert len(scores) == 12
    assert max(float(median) for median in scores.values()) < 20
    assert "jitter fitted to pytorch_ddp_bench: 4.0%" in done.stdout


def test_prediction_of_this_machine_gives_errors() -> None:
    program = BENCHMARKS / "prediction" / "machine.py"
    options = ["--models", "polynomial", "--seconds", "0.2"]
    done = subprocess.run(
        [sys.executable, str(program), *options], capture_output=True, text=True, timeout=300
    )
    assert not done.returncode, done.stderr
    assert "polynomial, 8 replicas" in done.stdout


def test_modes_gives_ratios() -> None:
    program = BENCHMARKS / "modes" / "main.py"
    done = subprocess.run(
        [sys.executable, str(program), "--quick", "--tasks", "weight"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode, done.stderr
    assert "one weight: time for 3000 asynchronous updates" in done.stdout


def test_sweep_gives_its_figures(tmp_path: Path) -> None:
    program = BENCHMARKS / "sweep" / "main.py"
    done = subprocess.run(
        [sys.executable, str(program), "--quick"], capture_output=True, text=True, timeout=600, cwd=tmp_path
    )
    assert not done.returncode, done.stderr
    for text in ("an empty trial under 20 ms", "16 cards busy at least 95%", "idle between trials under 1 s"):
        assert text in done.stdout


def test_machines_gives_ratios() -> None:
    program = BENCHMARKS / "machines" / "main.py"
    options = ["--quick", "--parts", "sums,memory"]
    done = subprocess.run(
        [sys.executable, str(program), *options], capture_output=True, text=True, timeout=300
    )
    assert not done.returncode, done.stderr
    assert "a sum of 1 MB over 2 processes, TensorFlow against sockets" in done.stdout
    assert re.search(r"memory of each process after 1000 steps .*PASS", done.stdout)
