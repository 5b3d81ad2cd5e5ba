"""`cn.Report`: what `cn.verify` found, result by result, with the cause of every difference."""

import json
from dataclasses import asdict, dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from colonnade.describe.pictures import html

CAUSES = {
    "randomness": "it draws random numbers: two runs on the same batch on one device differ",
    "mean": 'it takes a mean over the batch: the mean over slices, weighted by size, is right: join="mean"',
    "sum": 'it takes a sum over the batch: the sum over slices is right: join="sum"',
    "order": "it depends on the order of the examples: permuting them on one device changes the result",
    "statistics": "examples influence each other (batch statistics): exchanging some changes the others",
    "size": "it depends on the size of the batch: the same examples in a batch of another size give others",
    "groups": "it does not take every number of examples, and some slices have one that it does not take",
    "slices": "one device called on the same slices gives what N devices give: the function differs",
    "parallel": "one device agrees with itself on the same slices, but N devices do not: please report this",
}


@dataclass(frozen=True)
class Comparison:
    """One output or gradient at one batch size."""

    leaf: str
    batch: int
    difference: float
    tolerance: float
    cause: str | None = None

    @property
    def equal(self) -> bool:
        return self.cause is None


@dataclass(frozen=True)
class Report:
    """What `verify` found; true when N devices equal one. Prints as a table."""

    devices: tuple[str, ...]
    rows: tuple[Comparison, ...]
    left_out: tuple[int, ...] = ()  # sizes of batches that the function does not take on one device either

    def __bool__(self) -> bool:
        return all(row.equal for row in self.rows)

    @property
    def causes(self) -> tuple[str, ...]:
        """Why it is not the same function: keys of `CAUSES`."""
        return tuple(dict.fromkeys(row.cause for row in self.rows if row.cause))

    def to_json(self) -> str:
        """The report as JSON; an infinite difference (another shape, a missing value) is null."""
        rows = [
            {**asdict(row), "difference": row.difference if np.isfinite(row.difference) else None}
            for row in self.rows
        ]
        facts = {"equal": bool(self), "causes": self.causes, "devices": self.devices, "rows": rows}
        return json.dumps({**facts, "left_out": self.left_out}, indent=2)

    def _repr_html_(self) -> str:
        """In a notebook: the verdict, and a line for each result."""
        verdict = "equal" if self else "not the same function"
        head = ["what", "batch", "difference", "tolerance", "equal"]
        rows = [
            [
                r.leaf,
                r.batch,
                f"{r.difference:.1e}",
                f"{r.tolerance:.1e}",
                "yes" if r.equal else f"NO: {r.cause}",
            ]
            for r in self.rows
        ]
        sizes = list(dict.fromkeys(row.batch for row in self.rows))
        by_size = [[row for row in self.rows if row.batch == size] for size in sizes]
        summary = [
            [
                f"{size} examples",
                len(own),
                f"{max(r.difference for r in own):.1e}",
                sum(not r.equal for r in own),
            ]
            for size, own in zip(sizes, by_size, strict=True)
        ]
        title = f"{len(self.devices)} devices and one: {verdict}"
        tables = html.table(["batch", "results", "largest difference", "not equal"], summary, title=title)
        different = [row for row in rows if row[-1] != "yes"]
        tables += html.table(head, different) if different else ""
        words = [f"{cause}: {CAUSES[cause]}." for cause in self.causes]
        words += [f"A batch of {n} was left out: one device does not take it either." for n in self.left_out]
        fold = f"<details><summary>all {len(rows)} results</summary>{html.table(head, rows)}</details>"
        return tables + html.paragraphs(words) + fold

    def __str__(self) -> str:
        table = Table(title=f"{len(self.devices)} devices against one", title_justify="left")
        for column, side in (
            ("what", "left"),
            ("batch", "right"),
            ("difference", "right"),
            ("tolerance", "right"),
        ):
            table.add_column(column, justify=side)  # type: ignore[arg-type]
        table.add_column("equal")
        for row in self.rows:
            verdict = "yes" if row.equal else f"NO: {row.cause}"
            table.add_row(row.leaf, str(row.batch), f"{row.difference:.1e}", f"{row.tolerance:.1e}", verdict)
        console = Console(width=120, highlight=False)
        with console.capture() as text:
            console.print(table)
            verdict = "equal" if self else "not the same function"
            console.print(f"{len(self.devices)} devices and one: {verdict}.")
            for size in self.left_out:
                console.print(f"  A batch of {size} was left out: one device does not take it either.")
            for cause in self.causes:
                console.print(f"  {cause}: {CAUSES[cause]}.")
        return text.get().rstrip("\n")
