"""What does a checkpoint cost? Trainings that save against the same ones that do not.

python benchmarks/checkpoint/main.py [--quick]
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Contender, Contest, Spread

PROGRAM = Path(__file__).with_name("contender.py")
LIMIT = 0.035


def main(quick: Annotated[bool, typer.Option("--quick", help="One short round.")] = False) -> None:
    """Hold the contests and say whether the limit is met."""
    rounds, steps = (1, 120) if quick else (3, 400)
    table = Table(
        *("model", "time between saves, s", "stall of a save, ms", "share (95%)", "limit", "verdict"),
        "time in all, saving / not saving",
        box=box.MARKDOWN,
    )
    for model, every in (("mlp", 100), ("deep", 100)):
        contest = Contest()
        settings = {word: (model, word, str(steps), str(every)) for word in ("every", "never")}
        contest.hold([Contender(word, PROGRAM, options) for word, options in settings.items()], rounds)
        runs = contest.rounds["every"]
        between = Spread.of([run["seconds"] / run["saves"] for run in runs])
        stall = Spread.of([1000 * run["stalled"] / run["saves"] for run in runs])
        share = Spread.of([run["stalled"] / run["seconds"] for run in runs])
        verdict = "PASS" if share.median <= LIMIT else "FALLS SHORT"
        said = f"{share.median:.2%} ({share.low:.2%} to {share.high:.2%})"
        ratio = str(contest.ratio("every", "never", "seconds"))
        table.add_row(model, str(between), str(stall), said, f"{LIMIT:.1%}", verdict, ratio)
    Console(width=180).print(table)


if __name__ == "__main__":
    typer.run(main)
