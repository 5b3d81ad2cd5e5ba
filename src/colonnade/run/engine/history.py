"""`cn.Record` of a step (loss, metrics, speed) and `cn.History` of a fit."""

import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from colonnade.describe.pictures.drawings import sparkline
from colonnade.describe.pictures.html import table
from colonnade.describe.plan import Prediction
from colonnade.describe.timeline import Timeline
from colonnade.errors import InvalidArgument, Problem


@dataclass(frozen=True)
class Record:
    """What is known after a step: means over the global batch, counted since the trainer was made.

    `staleness` says how many of the gradients that were applied had each age: the number of updates
    between the reading of the parameters and the update (asynchronous training only).
    """

    loss: float
    metrics: dict[str, float]
    step: int
    examples: int
    skipped: int = 0
    staleness: dict[int, int] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        """In a notebook: a line of figures."""
        head = ["step", "loss", *self.metrics, "examples", "skipped"]
        figures = [f"{self.loss:.5g}", *(f"{value:.5g}" for value in self.metrics.values())]
        return table(head, [[f"{self.step:,}", *figures, f"{self.examples:,}", f"{self.skipped:,}"]])


@dataclass
class History:
    """What `fit` returns: a record per log line, the loss of every step, and how it ended.

    Args:
        records: one per log line.
        losses: one per step.
        seconds: that the fit took.
        examples: that it trained on.
        interrupted: whether Ctrl-C ended it.
        resumed: the saved step from which it went on, if it did.
        stalled: seconds that steps waited for checkpoints; no step waits for the last save.
        waited: seconds of the fit in which steps waited for the next batch.
        predicted: what a step was expected to take, by a plan or from the first batch.
        unpredicted: why there is no prediction, where there is none.
        compiled: what became of `compile=`, and why.
        timeline: of the steps that were profiled.
        logdir: where the fit wrote its log.
    """

    records: list[Record] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    examples: int = 0
    interrupted: bool = False
    resumed: int | None = None
    stalled: float = 0.0
    waited: float = 0.0
    predicted: Prediction | None = None
    unpredicted: str | None = None
    compiled: str | None = None

    timeline: Timeline | None = None
    logdir: Path | None = None

    def _repr_html_(self) -> str:
        """In a notebook: the loss of every step as a curve, and the last log lines."""
        head = ["step", "loss", *(self.records[-1].metrics if self.records else ())]
        rows = [
            [f"{r.step:,}", f"{r.loss:.5g}", *(f"{r.metrics.get(name, math.nan):.5g}" for name in head[2:])]
            for r in self.records[-5:]
        ]
        speed = f"{self.examples_per_second:,.0f} examples/s" if self.seconds else "nothing was trained"
        title = f"{len(self.losses):,} steps, {speed}" + (", interrupted" if self.interrupted else "")
        return sparkline(self.losses, name="loss") + table(head, rows, title=title)

    def report(self, path: str | Path | None = None, *, force: bool = False) -> Path:
        """Make a page of the fit, as `colonnade report` does; it must have had a `logdir`.

        Args:
            path: where to; `report.html` in the log directory by default.
            force: whether to write over a file that is no page of Colonnade's.

        Returns:
            Where the page is.
        """
        if self.logdir is None:
            rule, fix = "the fit wrote no log to make a page of", "Call fit(..., logdir='runs/first')"
            raise InvalidArgument("report()", [Problem("logdir", None, rule, fix)])
        # Pages are made in a layer above this one, which is looked up when somebody asks for a page.
        page: Path = import_module("colonnade.show.report.report").report([self.logdir], path, force=force)
        return page

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds if self.seconds else 0.0

    @property
    def seconds_per_step(self) -> float:
        """What a step took, beside `predicted.step`."""
        return self.seconds / len(self.losses) if self.losses else 0.0
