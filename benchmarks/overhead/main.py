"""What make_parallel costs: per step, until the first result, and per device.

python benchmarks/overhead/main.py            about a quarter of an hour
python benchmarks/overhead/main.py --quick    a few minutes: fewer rounds, fewer devices
"""

import sys
from pathlib import Path
from typing import Annotated

import matplotlib
import typer
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Claim, Contender, Contest, Spread, table

HERE = Path(__file__).parent
LARGE = 32  # devices at which the first result is measured, besides 1 and 8


def contender(name: str, num_devices: int, count: int) -> Contender:
    arguments = (name, str(num_devices), str(count))
    return Contender(f"{name} {num_devices}", HERE / "contenders.py", arguments)


def steps(console: Console, repeats: int, count: int) -> list[Claim]:
    """The quadratic fit against sessions, on two devices."""
    names = ("sessions", "fit", "fit_tensors", "fit_concrete", "fit_direct", "fit_many")
    contest = Contest()
    contest.hold([contender(name, 2, count) for name in names], repeats, console.log)
    rows = Table(
        "contender",
        "us per step",
        title="The quadratic fit on 2 devices",
        title_justify="left",
        box=box.MARKDOWN,
    )
    for name in names:
        rows.add_row(name, f"{contest.spread(f'{name} 2', 'step').median:.0f}")
    plain = contest.spread("fit 2", "plain")
    rows.add_row("fit, one device, without make_parallel", f"{plain.median:.0f}")
    console.print(rows)

    pairs = zip(contest.values("fit 2", "step"), contest.values("fit 2", "plain"), strict=True)
    ratio_to_plain = Spread.of([step / alone for step, alone in pairs])

    def claim(text: str, name: str, limit: float) -> Claim:
        return Claim(text, contest.ratio(f"{name} 2", "sessions 2", "step"), limit)

    return [
        Claim("a step per call against one device without make_parallel", ratio_to_plain),
        claim("a step per call, NumPy arrays, against sessions", "fit", 1),
        claim("a step per call, tensors, against sessions", "fit_tensors", 1),
        claim("a step per call, concrete function, against sessions", "fit_concrete", 1),
        claim("a step per call, called as one op, against sessions", "fit_direct", 1),
        claim("50 steps per call against sessions", "fit_many", 1 / 3),
    ]


def first_results(console: Console, repeats: int, large: int) -> list[Claim]:
    """The first result of a Keras CNN, against one device and against MirroredStrategy."""
    counts = (1, 8, large)
    contenders = [
        contender(f"{name}{suffix}", n, 3)
        for suffix in ("", "_forward")
        for name, some in (("cnn", counts), ("mirrored", counts[1:]))
        for n in some
    ]
    contest = Contest()
    contest.hold(contenders, repeats, console.log)
    columns = ("contender and devices", "first result, s", "a later step, ms")
    rows = Table(*columns, title="A Keras CNN, batch 256", title_justify="left", box=box.MARKDOWN)
    for one in contenders:
        first, later = (contest.spread(one.name, figure).median for figure in ("first", "step"))
        rows.add_row(one.name, f"{first:.2f}", f"{later / 1000:.0f}")
    console.print(rows)

    def claim(name: str, against: str, limit: float | None) -> Claim:
        return Claim(f"first result: {name} against {against}", contest.ratio(name, against, "first"), limit)

    return [
        claim(f"cnn{suffix} {n}", against, limit if suffix == "" else None)
        for suffix in ("", "_forward")
        for n, grown in ((8, 3), (large, 6))
        for against, limit in ((f"cnn{suffix} 1", grown), (f"mirrored{suffix} {n}", 0.5))
    ]


def growth(console: Console, repeats: int, count: int, devices: list[int]) -> list[Claim]:
    """What a step costs more than the same step without make_parallel, against the number of devices."""
    contest = Contest()
    contest.hold([contender("fit_tensors", n, count) for n in devices], repeats, console.log)
    overheads = {
        n: [
            step - plain
            for step, plain in zip(
                contest.values(f"fit_tensors {n}", "step"),
                contest.values(f"fit_tensors {n}", "plain"),
                strict=True,
            )
        ]
        for n in devices
    }
    columns = ("devices", "step, us", "overhead, us (95%)", "per device, us")
    rows = Table(*columns, title="The quadratic fit on more devices", title_justify="left", box=box.MARKDOWN)
    for n, values in overheads.items():
        step, extra = contest.spread(f"fit_tensors {n}", "step").median, Spread.of(values)
        between = f"{extra.median:.0f} ({extra.low:.0f} to {extra.high:.0f})"
        rows.add_row(str(n), f"{step:.0f}", between, f"{extra.median / n:.0f}")
    console.print(rows)
    plot({n: Spread.of(values) for n, values in overheads.items()})
    many = devices[-1]
    few = max(2, many // 8)
    grown = [b / many / (a / few) for a, b in zip(overheads[few], overheads[many], strict=True)]
    text = f"overhead per device at {many} devices against {few}"
    return [Claim(text, Spread.of(grown), 1)]


def plot(overheads: dict[int, Spread]) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    devices = list(overheads)
    spreads = list(overheads.values())
    medians = [spread.median for spread in spreads]
    below = [spread.median - spread.low for spread in spreads]
    above = [spread.high - spread.median for spread in spreads]
    axes.errorbar(devices, medians, yerr=(below, above), marker="o", capsize=3, label="measured, 95%")
    last = devices[-1]
    axes.plot([0, last], [0, medians[-1]], linestyle=":", color="grey", label="proportional to the devices")
    axes.set(xlabel="virtual CPU devices", ylabel="overhead per step, µs", xticks=devices)
    axes.set_title("What make_parallel adds to a step of the quadratic fit", fontsize=10)
    axes.legend()
    figure.savefig(HERE / "overhead.png", dpi=120)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and devices.")] = False,
    repeats: Annotated[int, typer.Option(help="Rounds; in each, every contender runs once.")] = 5,
) -> None:
    """Run the three contests and say which limits are met."""
    console = Console(width=110)
    repeats = 2 if quick else repeats
    count = 200 if quick else 600
    claims = [
        *steps(console, repeats, count),
        *growth(console, repeats, count, [1, 2, 4, 8] if quick else [1, 2, 4, 8, 16, 32, 64]),
        *first_results(console, repeats, 8 * 2 if quick else LARGE),
    ]
    console.print(table("Limits", claims))


if __name__ == "__main__":
    typer.run(main)
