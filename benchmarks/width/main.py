"""What splitting by width brings: an MLP 4 096 wide on two devices against one.

python benchmarks/width/main.py            about two minutes
python benchmarks/width/main.py --quick    one short round
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Claim, Contender, Contest, table

HERE = Path(__file__).parent
LEAST = 1.4  # times as fast as one device


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round.")] = False,
    repeats: Annotated[int, typer.Option(help="Rounds, each in a process of its own.")] = 5,
) -> None:
    """Hold the contest and say whether the limit is met."""
    console = Console(width=110)
    contest = Contest()
    seconds = "3" if quick else "15"
    contender = Contender("width", HERE / "contender.py", (seconds,))
    contest.hold([contender], 1 if quick else repeats, console.log)
    spread = contest.spread("width", "ratio")
    text = f"time of a step on 2 devices against 1 ({1 / spread.median:.2f} times as fast)"
    console.print(table("MLP 4 096 wide, batch 128, split by width", [Claim(text, spread, 1 / LEAST)]))


if __name__ == "__main__":
    typer.run(main)
