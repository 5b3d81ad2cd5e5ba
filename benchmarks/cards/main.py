"""ResNet-50 on 1, 2, 4, 8 cards: Colonnade against MirroredStrategy, and how each scales.

python benchmarks/cards/main.py                    all cards of the machine, half an hour
python benchmarks/cards/main.py --half             in mixed precision
python benchmarks/cards/main.py --rounds 1 --seconds 5

Images are made up and stay in memory: it is about the cards and the links between them, not about disks. What
was measured goes to results.json beside this file, in mixed precision to results_half.json, once it is known;
attach them to a report.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Contender, Contest, Spread

from colonnade.hardware import gpu
from colonnade.hardware.cards import detect

HERE = Path(__file__).parent


def counts(cards: int) -> list[int]:
    """
    >>> counts(6)
    [1, 2, 4, 6]
    """
    return sorted({n for n in (1, 2, 4, 8, 16) if n <= cards} | ({cards} if cards else set()))


def main(
    rounds: Annotated[int, typer.Option(help="How often each runs.")] = 3,
    seconds: Annotated[float, typer.Option(help="How long each measures.")] = 20.0,
    batch: Annotated[int, typer.Option(help="Images per card.")] = 64,
    size: Annotated[int, typer.Option(help="Pixels of an image's side.")] = 224,
    half: Annotated[bool, typer.Option("--half", help="Mixed precision.")] = False,
    patience: Annotated[
        float, typer.Option(help="Minutes for a contender, of which kernels that are compiled may take 30.")
    ] = 60.0,
) -> None:
    """Interleaved, each contender in processes of its own."""
    console = Console(width=110)
    usable = len(gpu.visible(detect().cards, os.environ))
    if not usable:
        hidden = f" that {gpu.VISIBLE} shows" if gpu.VISIBLE in os.environ else ""
        console.print(f"There is no card here{hidden}. benchmarks/throughput is about virtual devices.")
        raise typer.Exit(1)
    results: dict[int, dict[str, list[dict[str, float]]]] = {}
    for cards in counts(usable):
        contest = Contest()
        given = ("resnet50", str(cards), str(batch), str(size), str(seconds), *(["--half"] * half))
        contenders = [
            Contender(name, HERE / "contender.py", (name, *given), cards=True, patience=60 * patience)
            for name in ("colonnade", "mirrored")
        ]
        try:
            contest.hold(contenders, rounds, console.print)
        finally:  # whatever ends it, the rounds that were held count
            results[cards] = contest.rounds
            (HERE / f"results{'_half' * half}.json").write_text(json.dumps(results, indent=1) + "\n")
        console.print(summed_up(results))


def summed_up(results: dict[int, dict[str, list[dict[str, float]]]]) -> Table:
    """A row for each number of cards: images per second, and what is left of perfect scaling."""
    heads = (
        "cards",
        "Colonnade, images/s",
        "MirroredStrategy",
        "ratio (95%)",
        "of perfect scaling",
        "first step, s",
    )
    table = Table(*heads, box=box.MARKDOWN)
    alone = min(results)
    for cards, rounds in results.items():
        ours, theirs = ([figures["images"] for figures in rounds[name]] for name in ("colonnade", "mirrored"))
        ratio = Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])
        one = Spread.of([f["images"] for f in results[alone]["colonnade"]]).median / alone
        mine = Spread.of(ours).median
        first = [Spread.of([f["first"] for f in rounds[name]]).median for name in ("colonnade", "mirrored")]
        table.add_row(
            str(cards),
            f"{mine:,.0f}",
            f"{Spread.of(theirs).median:,.0f}",
            str(ratio),
            f"{mine / (one * cards):.0%}",
            f"{first[0]:.0f} against {first[1]:.0f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
