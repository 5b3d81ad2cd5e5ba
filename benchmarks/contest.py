"""Contenders against each other: each in processes of its own, in turn, so that what else the machine
does slows all of them alike. Only ratios within one contest count; times are printed for orientation.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

Figures = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """A Python program that prints a JSON object of figures.

    Libraries print as well: NCCL what `NCCL_DEBUG` asks for, some of it at the end. So the figures are the
    last line that is such an object. The others go to the error output.
    """

    name: str
    program: Path
    arguments: tuple[str, ...] = ()
    cards: bool = False  # else the contest is about virtual CPU devices, also on a machine with cards
    patience: float = 600.0  # in seconds

    def run(self) -> Figures:
        hidden = {} if self.cards else {"CUDA_VISIBLE_DEVICES": "-1"}
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **hidden}
        command = [sys.executable, str(self.program), *self.arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=self.patience, env=quiet)
        lines = done.stdout.splitlines()
        figures = None if done.returncode else last_figures(lines)
        for line in lines:
            if figures is None or line.strip() != figures:
                print(line, file=sys.stderr)
        if figures is None:
            why = "failed" if done.returncode else "printed no figures"
            raise RuntimeError(f"{self.name} {why}:\n{done.stderr}")
        return json.loads(figures)


def last_figures(lines: Sequence[str]) -> str | None:
    """The last line that is a JSON object.

    >>> last_figures(["NCCL version 2.21.5", '{"step": 0.1}', "NCCL INFO comm 0x7f - Destroy COMPLETE", "7"])
    '{"step": 0.1}'
    """
    for line in map(str.strip, reversed(lines)):
        try:
            if isinstance(json.loads(line), dict):
                return line
        except json.JSONDecodeError:
            continue
    return None


@dataclass(frozen=True)
class Spread:
    """A median with a 95% interval, from drawing the rounds again with replacement."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], draws: int = 10_000) -> "Spread":
        """
        >>> Spread.of([2.0, 2.0, 2.0])
        Spread(median=2.0, low=2.0, high=2.0)
        """
        known = np.asarray(values, float)
        again = np.median(np.random.default_rng(0).choice(known, (draws, len(known))), axis=1)
        low, high = np.percentile(again, [2.5, 97.5])
        return cls(float(np.median(known)), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Contest:
    """What each contender measured, round by round."""

    def __init__(self) -> None:
        self.rounds: dict[str, list[Figures]] = {}

    def hold(
        self, contenders: Sequence[Contender], repeats: int, tell: Callable[[str], None] = print
    ) -> None:
        """Let everyone run once per round, in the other direction every other round."""
        for number in range(repeats):
            for contender in contenders[:: -1 if number % 2 else 1]:
                figures = contender.run()
                self.rounds.setdefault(contender.name, []).append(figures)
                tell(f"round {number + 1} of {repeats}: {contender.name}: {figures}")

    def values(self, name: str, figure: str) -> list[float]:
        return [figures[figure] for figures in self.rounds[name]]

    def spread(self, name: str, figure: str) -> Spread:
        return Spread.of(self.values(name, figure))

    def ratio(self, name: str, against: str, figure: str) -> Spread:
        """Round by round, so that a slow minute, which both of a round have, cancels."""
        pairs = zip(self.values(name, figure), self.values(against, figure), strict=True)
        return Spread.of([a / b for a, b in pairs])


@dataclass(frozen=True)
class Claim:
    """A ratio and the limit that it shall not exceed; without a limit it is only reported."""

    text: str
    ratio: Spread
    limit: float | None = None

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return "-"
        return "PASS" if self.ratio.median <= self.limit else "FALLS SHORT"


def table(title: str, claims: Sequence[Claim]) -> Table:
    """The claims with their verdicts, as Markdown for the README of a benchmark."""
    columns = ("claim", "ratio (95%)", "limit", "verdict")
    rows = Table(*columns, title=title, title_justify="left", box=box.MARKDOWN)
    for claim in claims:
        limit = "-" if claim.limit is None else f"{claim.limit:.2f}"
        rows.add_row(claim.text, str(claim.ratio), limit, claim.verdict)
    return rows
