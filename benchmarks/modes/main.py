"""Is asynchronous training as fast as synchronous, and what do the other modes save?

python benchmarks/modes/main.py                     about twenty minutes on two cores
python benchmarks/modes/main.py --tasks weight      this contest only
python benchmarks/modes/main.py --quick             a smoke test: one short round
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Claim, Contender, Contest, Spread, table

HERE = Path(__file__).parent
TASKS = {
    "cnn": ("synchronous", "asynchronous", "local"),
    "cifar": ("synchronous", "asynchronous"),
    "slow cnn": ("synchronous", "asynchronous", "measured"),
    "weight": ("asynchronous",),
}
UPDATES = 3000  # per second, on a model of one weight


def claims(task: str, contest: Contest) -> list[Claim]:
    if task == "weight":
        rates = contest.values("asynchronous", "updates")
        text = f"one weight: time for {UPDATES} asynchronous updates, in seconds"
        return [Claim(text, Spread.of([UPDATES / rate for rate in rates]), 1.0)]
    limits = {"asynchronous": 1 / 1.5, "measured": 1 / 1.3} if task == "slow cnn" else {"asynchronous": 1.0}
    found = [
        Claim(
            f"{task}: time per example, {mode}", contest.ratio(mode, "synchronous", "time"), limits.get(mode)
        )
        for mode in TASKS[task][1:]
    ]
    if "local" in TASKS[task]:
        found.append(Claim(f"{task}: bytes, local", contest.ratio("local", "synchronous", "bytes"), 1 / 16))
    return found


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round.")] = False,
    tasks: Annotated[str | None, typer.Option(help="Some of the tasks, with commas.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, every contender runs once.")] = 5,
) -> None:
    """Hold the contests and say which limits are met."""
    console = Console(width=110)
    chosen = tasks.split(",") if tasks else list(TASKS)
    if unknown := [task for task in chosen if task not in TASKS]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(TASKS)}")
    found: list[Claim] = []
    for task in chosen:
        contest = Contest()
        seconds = "0.2" if quick else "4"
        entries = [Contender(mode, HERE / "contender.py", (mode, task, seconds)) for mode in TASKS[task]]
        contest.hold(entries, 1 if quick else repeats, lambda line, task=task: console.log(f"{task}: {line}"))
        found += claims(task, contest)
    console.print(table("Against synchronous, in the same round", found))


if __name__ == "__main__":
    typer.run(main)
