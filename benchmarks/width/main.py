"""What splitting by width brings: an MLP 4 096 wide on two devices against one.

python benchmarks/width/main.py            a few minutes
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
# Devices, and ops that run at a time.
CONTENDERS = {"one device": (1, 1), "two devices": (2, 2), "one device, two threads": (1, 2)}


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round.")] = False,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, every contender runs once.")] = 5,
) -> None:
    """Hold the contest and say whether the limit is met."""
    console = Console(width=110)
    contest = Contest()
    seconds = "1" if quick else "6"
    contenders = [
        Contender(name, HERE / "contender.py", (*map(str, setting), seconds))
        for name, setting in CONTENDERS.items()
    ]
    contest.hold(contenders, 1 if quick else repeats, console.log)
    losses = [loss for name in CONTENDERS for loss in contest.values(name, "loss")]
    console.print(f"losses differ by {max(losses) / min(losses) - 1:.1e} of their value")
    claims = []
    for against, limit in (("one device", 1 / LEAST), ("one device, two threads", None)):
        spread = contest.ratio("two devices", against, "step")
        text = f"a step on two devices against {against} ({1 / spread.median:.2f} times as fast)"
        claims.append(Claim(text, spread, limit))
    console.print(table("MLP 4 096 wide, batch 128, split by width", claims))


if __name__ == "__main__":
    typer.run(main)
