"""What a plan had predicted of a run, beside what was measured; a table of the page."""

from statistics import median

from colonnade.describe.pictures.html import size
from colonnade.describe.run_folder import Run, inner, number
from colonnade.show.report.run_summary import links


def forecast(run: Run) -> list[list[str]]:
    """Rows of a name, what was predicted, what was measured, and their ratio; none without a prediction."""
    told = inner(run.facts, "predicted")
    predicted = {name: number(value) for name, value in told.items()}
    if told.get("memory_known") is False:  # what layers keep is not in it
        predicted.pop("memory", None)
    steps = [value for value in run.column("seconds_per_batch") if value]
    rates = [value for value in run.column("examples_per_second") if value]
    held = [
        amount
        for line in (*run.happened("memory"), *run.happened("end"))
        for value in inner(inner(line, "memory"), "devices").values()
        if (amount := number(value))
    ]
    moved = sum(links(run).values())
    rows = [
        ("a step", predicted.get("step"), median(steps) if steps else None, _milliseconds),
        (
            "examples/s",
            predicted.get("examples_per_second"),
            median(rates) if rates else None,
            "{:,.0f}".format,
        ),
        ("bytes moved in a step", predicted.get("moved"), moved or None, size),
        ("memory of the fullest device", predicted.get("memory"), max(held, default=None), size),
    ]
    return [
        [name, said(foretold), said(real) if real else "not known", _ratio(foretold, real)]
        for name, foretold, real, said in rows
        # Where devices share a memory, nothing is predicted to move.
        if foretold
    ]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.4g} ms"


def _ratio(foretold: float, real: float | None) -> str:
    return f"{real / foretold:.2f}" if real else ""
