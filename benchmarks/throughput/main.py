"""How fast the trainer is: against MirroredStrategy, one device with all cores, and towers by hand.

python benchmarks/throughput/main.py                                  a few hours on two cores
python benchmarks/throughput/main.py --models cnn --devices 2,32      these contests only
python benchmarks/throughput/main.py --quick                          a smoke test: one short round

What was measured goes to results.json beside this file, contest by contest; the tables at the end are
made from all that is there, so contests can be held at different times.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Contender, Contest, Spread

HERE = Path(__file__).parent
MODELS = ("polynomial", "mlp", "cnn", "cifar", "lstm", "embedding", "transformer")
DEVICES = (1, 2, 4, 8, 32)
ALONE = 2  # devices at which one device with all cores takes part, and towers written by hand
SECONDS = 1.0  # a process measures for at least so long
# Geometric means over the models that must be reached against MirroredStrategy, by devices.
AGAINST_MIRRORED = {2: 1.5, 32: 2.5}
FIRST_STEP = (8, 32)

Contests = dict[str, Contest]


@dataclass(frozen=True)
class Claim:
    """A ratio, the rule for it, and whether it holds; a rule of None is only reported."""

    text: str
    ratio: Spread
    rule: str | None = None
    holds: bool = True

    @property
    def verdict(self) -> str:
        if self.rule is None:
            return "-"
        return "PASS" if self.holds else "FALLS SHORT"


def contenders(model: str, num_devices: int, seconds: float) -> list[Contender]:
    entries = {"colonnade": num_devices, "mirrored": num_devices}
    if num_devices == ALONE:
        entries |= {"single": 1, "towers": num_devices}
    return [
        Contender(name, HERE / "contender.py", (name, model, str(count), str(seconds)))
        for name, count in entries.items()
    ]


def memory_contenders() -> list[Contender]:
    """A large model with one set of variables on 1 and 8 devices, and with 8 sets."""
    return [
        Contender(f"{name} {count}", HERE / "contender.py", (name, "large", str(count), "0"))
        for name, count in (("colonnade", 1), ("colonnade", 8), ("copies", 8))
    ]


def input_contenders(seconds: float) -> list[Contender]:
    return [Contender("fed", HERE / "contender.py", ("fed", "cnn", "2", str(seconds)))]


def geometric_mean(ratios: list[list[float]]) -> Spread:
    """Over the models, round by round."""
    rounds = zip(*ratios, strict=False)
    return Spread.of([float(np.exp(np.mean(np.log(values)))) for values in rounds])


def by_round(contest: Contest, above: str, below: str, figure: str) -> list[float]:
    pairs = zip(contest.values(above, figure), contest.values(below, figure), strict=True)
    return [a / b for a, b in pairs]


def speed_claims(
    contests: Contests, num_devices: int, against: str, least: float, mean: float | None
) -> Iterator[Claim]:
    """How many times as many examples per second; no model's interval may lie entirely below `least`."""
    ratios = {}
    for model in MODELS:
        contest = contests.get(f"{model} {num_devices}")
        if contest and against in contest.rounds:
            ratios[model] = by_round(contest, against, "colonnade", "step")
    judged = mean is not None
    text = f"{num_devices} devices against {against}"
    for model, values in ratios.items():
        spread = Spread.of(values)
        rule = f"interval reaches {least}" if judged else None
        yield Claim(f"{text}: {model}", spread, rule, spread.high >= least)
    if ratios:
        spread = geometric_mean(list(ratios.values()))
        rule = f"at least {mean}" if judged else None
        yield Claim(f"{text}: geometric mean", spread, rule, spread.median >= (mean or 0))


def first_claims(contests: Contests) -> Iterator[Claim]:
    for n in FIRST_STEP:
        for model in MODELS:
            if contest := contests.get(f"{model} {n}"):
                spread = contest.ratio("colonnade", "mirrored", "first")
                text = f"{n} devices, time to first step against mirrored: {model}"
                yield Claim(text, spread, "at most 0.5", spread.median <= 0.5)


def memory_claims(contests: Contests) -> Iterator[Claim]:
    """What 7 more devices add to the peak, as a part of what 7 more sets of variables add."""
    contest = contests.get("memory")
    if contest:
        one, eight, sets = (
            contest.values(name, "memory") for name in ("colonnade 1", "colonnade 8", "copies 8")
        )
        added = [(b - a) / (c - a) for a, b, c in zip(one, eight, sets, strict=True)]
        spread = Spread.of(added)
        text = "memory that 8 devices add with shared variables, against copies"
        yield Claim(text, spread, "at most 0.5", spread.median <= 0.5)


def input_claims(contests: Contests) -> Iterator[Claim]:
    if contest := contests.get("input"):
        pairs = zip(contest.values("fed", "step"), contest.values("fed", "at_once"), strict=True)
        spread = Spread.of([late / at_once for late, at_once in pairs])
        text = "cnn on 2 devices, input that takes 0.7 of a step to arrive against input that is there"
        yield Claim(text, spread, "at most 1.1", spread.median <= 1.1)


def claims(contests: Contests) -> list[Claim]:
    found: list[Claim] = []
    for n in DEVICES:
        found += speed_claims(contests, n, "mirrored", 1.0, AGAINST_MIRRORED.get(n))
    found += speed_claims(contests, ALONE, "single", 0.97, 1.0)
    found += speed_claims(contests, ALONE, "towers", 1.0, None)
    return [*found, *first_claims(contests), *memory_claims(contests), *input_claims(contests)]


def times(contests: Contests) -> Table:
    """Medians, for orientation only: they were measured at different moments."""
    columns = ("model and devices", "contender", "step, ms", "first step, s", "peak memory, MiB")
    rows = Table(*columns, title="Medians", title_justify="left")
    for name, contest in contests.items():
        for contender in contest.rounds:
            step, first, memory = (
                contest.spread(contender, figure).median if figure in contest.rounds[contender][0] else None
                for figure in ("step", "first", "memory")
            )
            told = (f"{step:.2f}", "-" if first is None else f"{first:.1f}", f"{memory:.0f}")
            rows.add_row(name, contender, *told)
    return rows


def verdicts(found: list[Claim]) -> Table:
    columns = ("claim", "ratio (95%)", "rule", "verdict")
    rows = Table(*columns, title="Ratios and limits", title_justify="left")
    for claim in found:
        rows.add_row(claim.text, str(claim.ratio), claim.rule or "-", claim.verdict)
    return rows


def load(path: Path) -> Contests:
    contests = {}
    for name, rounds in (json.loads(path.read_text()) if path.exists() else {}).items():
        contests[name] = Contest()
        contests[name].rounds = rounds
    return contests


def save(path: Path, contests: Contests) -> None:
    stored = {name: contest.rounds for name, contest in sorted(contests.items())}
    path.write_text(json.dumps(stored, indent=1) + "\n")


def chosen(text: str | None, every: tuple[str, ...]) -> list[str]:
    names = text.split(",") if text else list(every)
    if unknown := [name for name in names if name not in every]:
        raise typer.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(every)}")
    return names


def hold(path: Path, name: str, entries: list[Contender], repeats: int, tell: Callable[[str], None]) -> None:
    contest = Contest()
    contest.hold(entries, repeats, lambda line: tell(f"{name}: {line}"))
    save(path, {**load(path), name: contest})


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round; no memory, no input.")] = False,
    models: Annotated[str | None, typer.Option(help="Some of the models, with commas.")] = None,
    devices: Annotated[str | None, typer.Option(help="Some numbers of devices, with commas.")] = None,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, every contender runs once.")] = 5,
    memory: Annotated[bool, typer.Option(help="Whether to measure memory and input as well.")] = True,
    results: Annotated[Path, typer.Option(help="Where results are kept.")] = HERE / "results.json",
) -> None:
    """Hold the contests and say which limits are met."""
    console = Console(width=120)
    if quick:
        repeats, memory = 1, False
    for model in chosen(models, MODELS):
        for n in chosen(devices, tuple(map(str, DEVICES))):
            entries = contenders(model, int(n), 0.1 if quick else SECONDS)
            hold(results, f"{model} {n}", entries, repeats, console.log)
    if memory:
        hold(results, "memory", memory_contenders(), repeats, console.log)
        hold(results, "input", input_contenders(SECONDS), repeats, console.log)
    contests = load(results)
    console.print(times(contests))
    console.print(verdicts(claims(contests)))


if __name__ == "__main__":
    typer.run(main)
