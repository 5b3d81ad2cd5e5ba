"""The figures of the experiment in the order of its page, each with what there is to see on it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from colonnade.experiment.design import PACES
from colonnade.experiment.findings import Findings
from colonnade.show.experiment import plots
from colonnade.show.experiment.drawing import style, svg


@dataclass(frozen=True)
class Exhibit:
    """A figure, its title, and what there is to see."""

    name: str
    title: str
    see: str
    svg: str


def gallery(findings: Findings) -> list[Exhibit]:
    """All figures, drawn."""
    exhibits = []
    for name, title, see, draw in _figures(findings):
        with style(name):
            exhibits.append(Exhibit(name, title, see, svg(draw())))
    return exhibits


def _figures(findings: Findings) -> Iterator[tuple[str, str, str, Callable[[], Figure]]]:
    count, several = findings.headline, [n for n in findings.design.devices if n > 1]
    yield (
        "devices",
        "Accuracy at the end, by number of devices",
        f"Left, every mode uses the rate that is best for synchronous training ({findings.common_rate:g}); "
        "right, each uses the rate that is best for it. Markers are means over the seeds, bars reach from "
        "the worst seed to the best. Compare each colour with synchronous; left and right differ in scale.",
        partial(plots.by_devices, findings),
    )
    yield (
        "rates",
        f"Accuracy at the end, by learning rate, on {count} devices",
        "Look for the rate at which a mode falls off, and whether it comes earlier where gradients are "
        "older. Left of that, look at which mode is highest: with small rates, more updates per example "
        "help. Bands reach from the worst seed to the best.",
        partial(plots.by_rate, findings, count),
    )
    for pace in PACES:
        for family, what in (("modes", "the modes"), ("bounds", "bounds on staleness")):
            slow = "" if pace == "even" else ", with one device four times slower"
            yield (
                f"curves_{family}" + ("_slow" if slow else ""),
                f"Accuracy against examples seen: {what}{slow}",
                "Test accuracy during training. Lines are means over the seeds, bands reach from the worst "
                "to the best. Above, one rate for all; below, a rate for each, on a finer scale. Where lines "
                "coincide, as those of bounds that never bind, the last one covers the others.",
                partial(plots.curves, findings, family, pace, several),
            )
    yield (
        "noise",
        f"Accuracy on noisy images, against synchronous training, on {count} devices",
        "Above 0 a mode is more robust than synchronous training, below 0 less; each with its own rate. "
        "Bands are 95% intervals of the mean difference over the seeds: where one includes 0, nothing is "
        "certain.",
        partial(plots.noise, findings, count),
    )
    yield (
        "seeds",
        f"Spread over seeds, and gap between training and test, on {count} devices",
        "A dot is one seed, the line marks the mean; each mode with its own rate, even devices. The further "
        "apart the dots, the more depends on luck. A larger gap means that more was learned by heart.",
        partial(plots.seeds, findings, count),
    )
    yield (
        "staleness",
        "How old gradients are when they are applied",
        "The part of all updates, by age. Filled: even devices. Outlined: one device four times slower, "
        "whose gradients are the few on the right. A bound cuts them off, and lets devices wait instead.",
        partial(plots.staleness, findings, several),
    )
