"""What readers see of the contests: tables in Markdown, the part of the README, and its picture."""

import re
from pathlib import Path
from typing import Any

from claims import Claim, claims, geometric_mean
from contest import Spread
from results import MODELS, NAMES, Results

COLOURS = ("#1f4e79", "#c55a11", "#d9a679", "#e8cfb8", "#7f3f98", "#2e7d32", "#808080", "#b39ddb", "#a5d6a7")
DEVICES = (2, 8, 32)
BEGIN, END = "<!-- contest -->", "<!-- /contest -->"


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def took_part(results: Results, devices: int) -> list[str]:
    held = [results.contests.get(f"{model} {devices}", {}) for model in MODELS]
    return [name for name in NAMES if any(name in contest for contest in held)]


def figures(results: Results, devices: int, figure: str, digits: int) -> str:
    """A row per model, a column per contender."""
    names = took_part(results, devices)
    rows = []
    for model in MODELS:
        cells = []
        for name in names:
            steps = results.steps(model, devices, name)
            if figure == "step":
                value = Spread.of(steps).median if steps else None
            else:
                value = results.figure(model, devices, name, figure)
            why = results.lost.get(f"{model} {devices}", {}).get(name, "")
            cells.append(f"{value:.{digits}f}" if value is not None else why.partition(":")[0] or "-")
        rows.append([model, *cells])
    return markdown(["model", *(NAMES[name] for name in names)], rows)


def settings(results: Results) -> str:
    """The setting of each contender, with the models that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for contest, chosen in results.settings.items():
        for name, setting in chosen.items():
            found.setdefault(name, {}).setdefault(setting, []).append(contest)
    rows = []
    for name in (name for name in NAMES if name in found):
        told = []
        most = max(map(len, found[name].values()))
        for setting, contests in sorted(found[name].items(), key=lambda item: -len(item[1])):
            where = "" if len(contests) == most and not told else f" ({', '.join(contests)})"
            told.append(setting + where)
        rows.append([NAMES[name], "; ".join(told)])
    return markdown(["contender", "setting"], rows)


def verdicts(found: list[Claim]) -> str:
    rows = [[claim.text, str(claim.figure), claim.rule or "-", claim.verdict] for claim in found]
    return markdown(["figure", "ratio (95%)", "target", "verdict"], rows)


def whole(results: Results) -> str:
    """All tables, for the README of this benchmark."""
    parts = []
    for devices in DEVICES:
        if took_part(results, devices):
            parts += [
                f"### {devices} devices",
                "Milliseconds per step, medians:",
                figures(results, devices, "step", 2),
            ]
            parts += ["Seconds to the first step:", figures(results, devices, "first", 1)]
            parts += ["Peak memory, MiB:", figures(results, devices, "memory", 0)]
    parts += ["### Settings", settings(results)]
    told = [
        f"- {contest}: {NAMES[name]} {why}"
        for contest, who in results.lost.items()
        for name, why in who.items()
    ]
    parts += ["### Lost", "\n".join(told)] if told else []
    parts += ["### Targets", verdicts(claims(results))]
    return "\n\n".join(parts)


def short(results: Results) -> str:
    """For the README: times as many examples per second as MirroredStrategy, and as the others."""
    columns = {devices: results.speedups(devices, "mirrored") for devices in DEVICES}
    by_devices = table(columns, {n: f"{n} devices" for n in DEVICES}, digits=1)
    others = [name for name in took_part(results, 2) if name not in ("colonnade", "mirrored")]
    rest = table({name: results.speedups(2, name) for name in others}, NAMES, digits=2)
    known = results.machine["versions"]
    versions = ", ".join(f"{name} {number}" for name, number in known.items())
    cores = results.machine["cores"]
    said = [
        "- **Virtual devices add no hardware**: all contenders have the same cores.",
        "  With two of them on two cores, all that is trained with TensorFlow spends its time in the same",
        "  kernels. What Colonnade saves grows with the number of devices.",
        f"- **Measured** on {cores} CPU cores with a global batch of 256 and Adam: {versions}.",
        "  Figures are medians of the rounds; [the benchmark](benchmarks/throughput/README.md) has the",
        "  setting of every contender, the intervals, and what falls short, and why.",
    ]
    return "\n\n".join(
        [
            by_devices,
            "Two devices against the others:",
            rest,
            "![examples per second of every contender, by model](docs/contest.png)",
            "\n".join(said),
        ]
    )


def table(columns: dict[Any, dict[str, list[float]]], heads: dict[Any, str], digits: int) -> str:
    """Speeds against some contenders: a row per model, then the geometric mean."""
    cell = lambda values: f"{Spread.of(values).median:.{digits}f}" if values else "-"  # noqa: E731
    rows = [[model, *(cell(column.get(model)) for column in columns.values())] for model in MODELS]
    means = [f"**{geometric_mean(c).median:.{digits}f}**" if c else "-" for c in columns.values()]
    return markdown(["model", *(heads[key] for key in columns)], [*rows, ["**geometric mean**", *means]])


def put(page: Path, text: str) -> None:
    """Between the marks of a page."""
    before = page.read_text()
    after, places = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{text}\n\n{END}", before, flags=re.S)
    assert places == 1, f"{page} has no place for the tables, or several: {BEGIN} and {END}"
    page.write_text(after)


def picture(results: Results, path: Path) -> None:
    """Examples per second at 2 devices, Colonnade's being 1: a group of bars per model."""
    import matplotlib as mpl

    mpl.use("Agg")  # no window
    from matplotlib import pyplot as plt

    names = took_part(results, 2)
    figure, axes = plt.subplots(figsize=(11, 4.2), layout="constrained")
    width = 0.86 / len(names)
    for place, name in enumerate(names):
        xs, heights, low, high = [], [], [], []
        for at, model in enumerate(MODELS):
            ratios = results.speedups(2, name).get(model)
            if ratios:
                spread = Spread.of([1 / ratio for ratio in ratios])
                xs.append(at + (place - (len(names) - 1) / 2) * width)
                heights.append(spread.median)
                low.append(spread.median - spread.low)
                high.append(spread.high - spread.median)
        colour = COLOURS[list(NAMES).index(name)]
        bars = {"yerr": [low, high], "error_kw": {"lw": 0.7}} if name != "colonnade" else {}
        axes.bar(xs, heights, width, color=colour, label=NAMES[name], **bars)
    axes.axhline(1, color="black", lw=0.6)
    axes.set_xticks(range(len(MODELS)), MODELS)
    axes.set_ylim(0, 2)  # the polynomial, a step of a tenth of a millisecond, goes beyond
    axes.set_ylabel("examples per second,\nColonnade on 2 devices = 1")
    axes.legend(ncols=5, fontsize=8, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
