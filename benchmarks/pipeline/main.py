"""How fast is a pipeline? Ratios within one run, each virtual device limited to one thread.

python benchmarks/pipeline/main.py            5 rounds
python benchmarks/pipeline/main.py --quick    2 rounds, one model
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Claim, Spread, table

HERE = Path(__file__).parent
STAGES, MICRO_BATCHES = 2, 8
IDEAL = MICRO_BATCHES / (MICRO_BATCHES + STAGES - 1)
# Of two devices that are never idle except at the ends of a step.
ENOUGH = 0.85
DEAREST = 1.03  # what a pipeline of one stage may cost


class Running:
    """A contender that has started; several start together."""

    def __init__(self, *arguments: object) -> None:
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        command = [sys.executable, str(HERE / "contender.py"), *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, env=quiet, **pipes)
        self._out = self._process.stdout

    def ready(self) -> None:
        while (line := self._out.readline()) != "ready\n":
            if not line:
                raise RuntimeError(self._process.stderr.read())

    def go(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def figures(self) -> dict[str, float]:
        out, err = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(err)
        return json.loads(out.strip().splitlines()[-1])


def together(*contenders: tuple[object, ...]) -> list[dict[str, float]]:
    """The figures of contenders that run side by side."""
    running = [Running(*contender) for contender in contenders]
    for one in running:
        one.ready()
    for one in running:
        one.go()
    return [one.figures() for one in running]


def round_of(model: str, seconds: float) -> dict[str, float]:
    """Steps per second of everyone, and what two processes reach together; one after the other."""

    def rate(name: str, stages: int) -> float:
        return 1 / together((model, name, stages, MICRO_BATCHES, seconds))[0]["step"]

    alone = (model, "accumulated", 1, MICRO_BATCHES, seconds)
    (piped,) = together((model, "pipeline", STAGES, MICRO_BATCHES, seconds))
    return {
        "one": rate("accumulated", 1),
        "one stage": rate("pipeline", 1),
        "two stages": 1 / piped["step"],
        "slots": piped["slots"],
        "two processes": sum(1 / figures["step"] for figures in together(alone, alone)),
        "one again": rate("accumulated", 1),
    }


def claims(model: str, rounds: list[dict[str, float]]) -> list[Claim]:
    """Ratios are 'how much slower than', so that less is better and a limit is a most."""
    wanted = [r["two processes"] * IDEAL / r["two stages"] for r in rounds]
    cost = [(r["one"] + r["one again"]) / 2 / r["one stage"] for r in rounds]
    speedup = [r["two stages"] / ((r["one"] + r["one again"]) / 2) for r in rounds]
    limit = [r["two processes"] / ((r["one"] + r["one again"]) / 2) for r in rounds]
    return [
        Claim(f"{model}: ideal of two stages against what they reach", Spread.of(wanted), 1 / ENOUGH),
        Claim(f"{model}: a pipeline of one stage against micro-batches by hand", Spread.of(cost), DEAREST),
        Claim(f"{model}: slots of a step, by its timeline", Spread.of([r["slots"] for r in rounds])),
        Claim(f"{model}: speed of two stages against one device", Spread.of(speedup)),
        Claim(f"{model}: speed of two unconnected processes against one", Spread.of(limit)),
    ]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="2 rounds, one model.")] = False,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, everyone runs once.")] = 5,
    seconds: Annotated[float, typer.Option(help="How long each is timed.")] = 4.0,
) -> None:
    """Measure, and say which limits are met."""
    console = Console(width=110)
    found: list[Claim] = []
    for model in ("mlp",) if quick else ("mlp", "lstm"):
        rounds = []
        for number in range(2 if quick else repeats):
            rounds.append(round_of(model, seconds))
            rates = ", ".join(f"{name} {rate:.2f}" for name, rate in rounds[-1].items())
            console.log(f"{model}, round {number + 1}, steps per second: {rates}")
        found += claims(model, rounds)
    console.print(table(f"{STAGES} stages, {MICRO_BATCHES} micro-batches", found))


if __name__ == "__main__":
    typer.run(main)
