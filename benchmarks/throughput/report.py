"""What readers see of the contests: tables in Markdown, the part of the README, and its picture."""

import re
import textwrap
from pathlib import Path
from typing import Any

from claims import Claim, claims, geometric_mean
from contest import Spread
from results import LARGER, MODELS, NAMES, Results

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
    """For the README: times as many examples per second as MirroredStrategy, and the others in a sentence."""
    columns = {devices: results.speedups(devices, "mirrored") for devices in DEVICES}
    known = results.machine["versions"]
    versions = ", ".join(f"{name} {number}" for name, number in known.items())
    cores = results.machine["cores"]
    said = [
        f"- **Virtual devices share the same cores**, here {cores}. Two devices run the same kernels as one,",
        "  so only overhead can be saved; in the mean, the gain grows with the number of devices.",
        *others(results),
        "- **Measured** with a global batch of 256 and Adam, in medians of interleaved rounds:",
        f"  {versions}.",
        "  [The benchmark](benchmarks/throughput/README.md) has every contender's setting and step, the",
        "  intervals, and what falls short of our own targets, and why.",
    ]
    return "\n\n".join(
        [
            table(columns, {n: f"{n} devices" for n in DEVICES}),
            "![examples per second of every contender, by model](docs/contest.png)",
            "\n".join(said),
        ]
    )


def others(results: Results) -> list[str]:
    """The means of all contenders on two devices or one, as items of a list."""
    means = {}
    for name in took_part(results, 2):
        ratios = {m: values for m, values in results.speedups(2, name).items() if m in LARGER}
        if name not in ("colonnade", "mirrored") and ratios:
            means[NAMES[name]] = geometric_mean(ratios).median
    if not means:
        return []
    told = "; ".join(f"{mean:.2f} times {name}" for name, mean in means.items())
    text = f"- **Two devices beside the others**, in the geometric mean over the six larger models: {told}. "
    text += "Towers and the compat.v1 program have no guard against NaN and keep no record of losses."
    if alone := results.speedups(2, "single").get("polynomial"):
        slow = f"{Spread.of(alone).median:.2f} times as fast as on one device"
        text += f" The polynomial, which is all overhead, runs {slow}."
    return [textwrap.fill(text, 118, subsequent_indent="  ")]


def table(columns: dict[Any, dict[str, list[float]]], heads: dict[Any, str]) -> str:
    """Speeds against some contenders: a row per model, then the geometric mean."""
    rows = [
        [model, *(speed(Spread.of(c[model]).median) if model in c else "-" for c in columns.values())]
        for model in MODELS
    ]
    means = [f"**{speed(geometric_mean(c).median)}**" if c else "-" for c in columns.values()]
    return markdown(["model", *(heads[key] for key in columns)], [*rows, ["**geometric mean**", *means]])


def speed(ratio: float) -> str:
    """Two digits where they tell who is ahead."""
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}"


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
