"""What a sweep adds to its trials, against Optuna's threads and against a program per trial started by hand.

python benchmarks/sweep/main.py            about five minutes
python benchmarks/sweep/main.py --quick    a minute
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
WORKERS, CARDS = 8, 16
OVERHEAD, BUSY, IDLE = (
    0.020,
    0.95,
    1.0,
)  # seconds of an empty trial, share of the time, seconds between trials


def run(*arguments: str) -> dict[str, float]:
    command = [sys.executable, str(HERE / "contender.py"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main(quick: Annotated[bool, typer.Option("--quick", help="Fewer trials and rounds.")] = False) -> None:
    console = Console(width=130)
    rounds, count = (1, 80) if quick else (3, 240)
    rows: dict[str, list[float]] = {}
    kinds: dict[str, Any] = {
        "colonnade sweep --reuse, journal": lambda f: run("colonnade", str(count), str(WORKERS), f"{f}/c"),
        "colonnade sweep, a process per trial, journal": lambda f: run(
            "process", str(count // 4), str(WORKERS), f"{f}/p"
        ),
        f"Optuna n_jobs={WORKERS}, journal": lambda f: run("threads", str(count), str(WORKERS), f"{f}/t.log"),
        f"Optuna n_jobs={WORKERS}, SQLite": lambda f: run(
            "threads", str(count // 4), str(WORKERS), f"sqlite:///{f}/t.db"
        ),
        f"a program per trial by hand, {WORKERS} at a time, journal": lambda f: run(
            "hand", str(count // 8), str(WORKERS), f"{f}/h.log"
        ),
    }
    for _ in range(rounds):
        for name, measure in kinds.items():
            with tempfile.TemporaryDirectory(dir=".") as folder:
                rows.setdefault(name, []).append(measure(Path(folder).resolve())["trial"])
                console.log(name, f"{1000 * rows[name][-1]:.1f} ms")
    table = Table("an empty objective, 8 at a time", "ms per trial", "by round", box=box.MARKDOWN)
    for name, spans in rows.items():
        table.add_row(name, f"{1000 * median(spans):.1f}", ", ".join(f"{1000 * s:.1f}" for s in spans))
    console.print(table)
    trials = str((3 if quick else 8) * CARDS)
    busy = {}
    for how in ("reuse", "process"):
        with tempfile.TemporaryDirectory(dir=".") as folder:
            busy[how] = run("busy", trials, str(CARDS), f"{Path(folder).resolve()}/b", how)
            console.log(how, busy[how])
    table = Table(
        f"trials of 2 s on {CARDS} virtual cards", "busy", "gap, s", "of it idle, s", box=box.MARKDOWN
    )
    for how, figures in busy.items():
        name = "--reuse" if how == "reuse" else "a process per trial"
        table.add_row(name, f"{figures['busy']:.1%}", f"{figures['gap']:.3f}", f"{figures['idle']:.3f}")
    console.print(table)
    first = next(iter(rows.values()))
    for text, good in (
        (f"an empty trial under {1000 * OVERHEAD:.0f} ms", median(first) < OVERHEAD),
        (f"{CARDS} cards busy at least {BUSY:.0%} of the time, --reuse", busy["reuse"]["busy"] >= BUSY),
        (f"{CARDS} cards busy at least {BUSY:.0%}, a process per trial", busy["process"]["busy"] >= BUSY),
        (f"idle between trials under {IDLE:.0f} s beside the start", busy["process"]["idle"] < IDLE),
    ):
        console.print(f"{text}: {'PASS' if good else 'FALLS SHORT'}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
