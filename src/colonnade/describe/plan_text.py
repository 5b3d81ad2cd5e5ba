"""A plan in words: the advice, the ranking of the layouts that were looked at, and the reason for each."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colonnade.describe.plan import Plan, Prediction

HEAD = ("layout", "step", "examples/s", "efficiency", "memory", "moved", "busiest link")


def text(plan: "Plan") -> str:
    """The advice first, then a line for the plan and one for each layout that was not chosen."""
    lines = [plan.advice or f"{plan.layout}, global batch {plan.batch}"]
    if plan.predicted is None:
        return lines[0]
    rows: list[tuple[str, Prediction | None, str]] = [(f"* {plan.layout}", plan.predicted, "")]
    rows += [(f"  {one.layout}", one.predicted, one.reason) for one in plan.candidates]
    width = max(len(layout) for layout, _, _ in rows)
    lines += ["", f"{'  ' + HEAD[0]:{width}}" + "".join(f"{head:>13}" for head in HEAD[1:])]
    for layout, predicted, reason in rows:
        lines.append(f"{layout:{width}}{figures(predicted)}" if predicted is not None else layout)
        if reason:
            lines.append(f"      {reason}")
    return "\n".join(lines)


def figures(predicted: "Prediction") -> str:
    """The numbers of a prediction, in columns."""
    cells = (
        duration(predicted.step),
        f"{predicted.examples_per_second:,.4g}",
        f"{predicted.efficiency:.0%}",
        size(predicted.memory) if predicted.memory_known else "not known",
        size(predicted.moved),
        size(predicted.busiest),
    )
    return "".join(f"{cell:>13}" for cell in cells)


def duration(seconds: float) -> str:
    """
    >>> duration(0.00125), duration(2.5), duration(0.9999), duration(98_765)
    ('1.25 ms', '2.5 s', '1 s', '98,765 s')
    """
    if 999.5 <= seconds < 1e6:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} us"


def size(count: float) -> str:
    """
    >>> size(2**20 * 1.5), size(100)
    ('1.5 MiB', '100 B')
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:{'.3g' if count < 999.5 * unit else '.0f'}} {name}"
    return f"{count:.0f} B"
