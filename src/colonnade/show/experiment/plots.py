"""The figures of the experiment on synchronous and asynchronous training."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from colonnade.experiment.answer import fraction
from colonnade.experiment.design import ASIDE, MODES, PACES, Trial
from colonnade.experiment.findings import Findings, MeasuredTrial
from colonnade.show.experiment.drawing import GROUND, INK, legend

WIDTH = 10.0
# From hot, the oldest gradients, to cold, those without any age.
LOOKS = {
    "synchronous": (INK, "o"),
    "asynchronous": ("#dd4b39", "s"),
    "damped": ("#b07a4a", "X"),
    "staleness 16": ("#e8893a", "D"),
    "staleness 4": ("#cda434", "^"),
    "staleness 1": ("#4fa56b", "v"),
    "in turn": ("#3f8fd6", "P"),
    "local 8": ("#2a9d8f", "^"),
    "DiLoCo 32": ("#8f6fd8", "D"),
    "elastic": ("#cf5f9f", "v"),
}
FAMILIES = {
    "modes": ("synchronous", "asynchronous", "damped", "local 8", "DiLoCo 32", "elastic"),
    "bounds": ("synchronous", "asynchronous", "staleness 16", "staleness 4", "staleness 1", "in turn"),
}
FAMILIES_AS_SAID = {"modes": "the modes", "bounds": "bounds on staleness"}
FINE = 8.0  # points of accuracy, where a scale shows no more
POINTS = 40  # of a curve; a panel is too narrow for more
TUNED = {False: "one rate for all", True: "a rate for each"}


def by_devices(findings: Findings) -> Figure:
    figure = Figure(figsize=(WIDTH, 7.2))
    panels = figure.subplots(len(FAMILIES), 2, squeeze=False, sharey="col")
    for row, family in zip(panels, FAMILIES, strict=True):
        for axes, tuned in zip(row, TUNED, strict=True):
            at = np.arange(len(findings.design.devices))
            for k, mode in enumerate(FAMILIES[family]):
                measured = [
                    findings.measured(Trial(mode, n, "even"), tuned=tuned) for n in findings.design.devices
                ]
                tests = 100 * np.array([m.test for m in measured])
                means = tests.mean(axis=1)
                shifted = at + 0.07 * (
                    k - (len(FAMILIES[family]) - 1) / 2
                )  # or the bars would hide each other
                bars = np.abs(np.stack([tests.min(axis=1), tests.max(axis=1)]) - means)
                colour, marker = LOOKS[mode]
                axes.errorbar(
                    shifted, means, bars, label=mode, color=colour, marker=marker, ms=5, lw=1.4, elinewidth=1
                )
            axes.set_xticks(at, [str(n) for n in findings.design.devices])
            axes.set_title(f"{FAMILIES_AS_SAID[family]}, {TUNED[tuned]}")
            axes.set_xlabel("devices")
            _percent(axes)
    for row in panels:
        row[0].set_ylabel("test accuracy")
        row[0].legend(fontsize=9, loc="lower left")
    return figure


def by_rate(findings: Findings, count: int) -> Figure:
    figure = Figure(figsize=(WIDTH, 6.6))
    panels = figure.subplots(2, len(FAMILIES), squeeze=False, sharex=True, sharey="row")
    rates, best = findings.design.rates, 0.0
    for column, family in zip(panels.T, FAMILIES, strict=True):
        for mode in FAMILIES[family]:
            tests = 100 * findings.by_rate(Trial(mode, count, "even"))
            best = max(best, tests.max())
            colour, marker = LOOKS[mode]
            for axes in column:
                axes.plot(rates, tests.mean(axis=1), color=colour, marker=marker, ms=5, lw=1.6, label=mode)
                axes.fill_between(rates, tests.min(axis=1), tests.max(axis=1), color=colour, alpha=0.15, lw=0)
        for axes in column:
            axes.axvline(findings.common_rate, color=GROUND, ls="--", lw=1)
            _percent(axes)
        column[0].set_title(FAMILIES_AS_SAID[family])
        column[0].legend(fontsize=9, loc="lower left")
        column[1].set_xscale("log", base=2)
        column[1].set_xticks(rates, [fraction(rate) for rate in rates])
        column[1].set_xlabel("learning rate (dashed: the best for synchronous training)")
    panels[0, 0].set_ylabel("test accuracy")
    panels[1, 0].set_ylabel("the same, on a finer scale")
    panels[0, 0].set_ylim(0, 103)
    panels[1, 0].set_ylim(best - FINE, best + 0.05 * FINE)
    return figure


def curves(findings: Findings, family: str, pace: str, several: Sequence[int]) -> Figure:
    figure = Figure(figsize=(WIDTH, 5.4))
    panels = figure.subplots(2, len(several), squeeze=False, sharex=True, sharey="row")
    known = len(findings.design.examples)
    at = np.linspace(0, known - 1, min(known, POINTS)).round().astype(int)
    examples, best = np.array(findings.design.examples)[at] / 1000, 0.0
    for row, tuned in zip(panels, TUNED, strict=True):
        for axes, count in zip(row, several, strict=True):
            for mode in FAMILIES[family]:
                curve = 100 * findings.measured(Trial(mode, count, pace), tuned=tuned).curve[:, at]
                best = max(best, curve.max())
                colour = LOOKS[mode][0]
                axes.plot(examples, curve.mean(axis=0), color=colour, lw=1.5, label=mode)
                axes.fill_between(
                    examples, curve.min(axis=0), curve.max(axis=0), color=colour, alpha=0.15, lw=0
                )
            axes.set_title(f"{count} devices" if not tuned else "")
            _percent(axes)
        row[0].set_ylabel(f"test accuracy\n{TUNED[tuned]}")
    panels[0, 0].set_ylim(0, 100)
    panels[1, 0].set_ylim(best - FINE, best + 0.05 * FINE)
    figure.supxlabel("thousand examples seen", fontsize=10)
    legend(figure, panels[0, 0], columns=6)
    return figure


def noise(findings: Findings, count: int) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.9))
    panels = figure.subplots(1, len(FAMILIES), squeeze=False, sharey=True)[0]
    levels = np.array([0.0, *findings.design.noise])
    for axes, family in zip(panels, FAMILIES, strict=True):
        for mode in FAMILIES[family][1:]:
            differences = findings.by_noise(Trial(mode, count, "even"))
            colour, marker = LOOKS[mode]
            axes.plot(
                levels, [d.mean for d in differences], color=colour, marker=marker, ms=5, lw=1.6, label=mode
            )
            axes.fill_between(
                levels,
                [d.low for d in differences],
                [d.high for d in differences],
                color=colour,
                alpha=0.12,
                lw=0,
            )
        axes.axhline(0, color=INK, lw=1.4)
        axes.set_xticks(levels)
        axes.set_xlabel("standard deviation of the noise (pixels are 0 to 1)")
        axes.legend(fontsize=9, loc="best")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}"))
    panels[0].set_ylabel("points against synchronous")
    return figure


def seeds(findings: Findings, count: int) -> Figure:
    figure = Figure(figsize=(WIDTH, 3.9))
    modes = list(findings.design.modes)
    shown: list[tuple[str, Callable[[MeasuredTrial], np.ndarray]]] = [
        ("test accuracy", lambda m: m.test),
        ("gap to training, in points", lambda m: m.gap),
        ("accuracy with noise", lambda m: m.robust),
    ]
    panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
    for axes, (label, value) in zip(panels, shown, strict=True):
        for y, mode in enumerate(modes):
            values = 100 * value(findings.measured(Trial(mode, count, "even"), tuned=True))
            colour = LOOKS[mode][0]
            axes.plot(values, np.full(len(values), y), "o", color=colour, ms=6, alpha=0.6, mew=0)
            axes.plot([values.mean()] * 2, [y - 0.35, y + 0.35], color=colour, lw=2)
        axes.set_title(label)
        axes.set_yticks(range(len(modes)), modes)
        if "gap" not in label:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
    panels[0].invert_yaxis()
    return figure


def staleness(findings: Findings, several: Sequence[int]) -> Figure:
    modes = [mode for mode in findings.design.modes if MODES[mode].raced and mode not in ASIDE]
    figure = Figure(figsize=(WIDTH, 1.5 * len(modes) + 0.6))
    panels = figure.subplots(len(modes), len(several), squeeze=False, sharey=True, sharex="col")
    for row, mode in zip(panels, modes, strict=True):
        for axes, count in zip(row, several, strict=True):
            for pace, filled in zip(PACES, (True, False), strict=True):
                ages = findings.measured(Trial(mode, count, pace), tuned=True).ages
                total = sum(ages.values())
                axes.bar(
                    list(ages),
                    [100 * n / total for n in ages.values()],
                    width=0.8,
                    color=LOOKS[mode][0] if filled else "none",
                    alpha=0.55 if filled else 1.0,
                    edgecolor="none" if filled else INK,
                    lw=0.9,
                    label=pace,
                )
            axes.set_ylim(0, 105)
            _percent(axes)
        row[0].set_ylabel(mode)
    for axes, count in zip(panels[0], several, strict=True):
        axes.set_title(f"{count} devices")
    figure.supxlabel("age: updates between reading and applying", fontsize=10)
    return figure


def _percent(axes: Axes) -> None:
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
