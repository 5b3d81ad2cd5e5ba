"""Rows of predictions beside what was published or measured, and how well a table of them did."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np


@dataclass(frozen=True)
class Row:
    """One figure, measured and predicted; `counted` is False where it was used to calibrate."""

    table: str
    case: str
    measured: float
    predicted: float
    unit: str = "s"
    counted: bool = True
    note: str = ""

    @property
    def error(self) -> float:
        """As a part of what was measured."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Score:
    """Of one table."""

    table: str
    rows: int
    median: float
    worst: float
    ranks: float | None  # Spearman's correlation, where there are at least three rows

    @classmethod
    def of(cls, table: str, rows: Sequence[Row]) -> "Score":
        counted = [row for row in rows if row.counted]
        errors = [abs(row.error) for row in counted]
        ranks = None
        if len(counted) > 2:
            ranks = spearman([row.measured for row in counted], [row.predicted for row in counted])
        return cls(table, len(counted), median(errors), max(errors), ranks)

    def line(self) -> str:
        ranks = "-" if self.ranks is None else f"{self.ranks:.3f}"
        return f"| {self.table} | {self.rows} | {self.median:.1%} | {self.worst:.1%} | {ranks} |"


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Rank correlation; equal values share the mean of their ranks.

    >>> spearman([1, 2, 3], [10, 30, 20])
    0.5
    """
    a, b = ranked(one), ranked(other)
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return round(float(np.corrcoef(a, b)[0, 1]), 9)


def ranked(values: Sequence[float]) -> np.ndarray:
    known = np.asarray(values, float)
    return np.array([(known < v).sum() + ((known == v).sum() - 1) / 2 for v in known])


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table for the README."""
    lines = ["| case | measured | predicted | error |", "|---|---|---|---|"]
    for row in rows:
        note = f" ({row.note})" if row.note else ""
        error = f"{row.error:+.1%}" if row.counted else f"{row.error:+.1%}, not counted"
        lines.append(
            f"| {row.case}{note} | {row.measured:.4g} {row.unit} | {row.predicted:.4g} {row.unit} | {error} |"
        )
    return "\n".join(lines)
