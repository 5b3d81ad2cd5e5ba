"""What `colonnade doctor` prints."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from colonnade.hardware.doctors.finding import Finding

MARKS = {
    "good": ("ok", "green"),
    "note": ("note", "yellow"),
    "blocks": ("BLOCKS", "bold red"),
    "unknown": ("?", "dim"),
}


def report(findings: Sequence[Finding]) -> RenderableType:
    """Every check with what was found; why it matters and what to do where something is to be done."""
    table = Table(box=None, padding=(0, 1), show_header=False)
    for column in ("state", "check"):
        table.add_column(column, no_wrap=True)
    table.add_column("what", overflow="fold")
    for finding in findings:
        mark, colour = MARKS[finding.state]
        what = Text(finding.found)
        if finding.state in ("note", "blocks"):
            what.append(f"\nwhy: {finding.why}", "dim")
            what.append(f"\ndo:  {finding.remedy}", "bold")
        elif finding.remedy:
            what.append(f"\nto know: {finding.remedy}", "bold")
        table.add_row(Text(mark, colour), finding.check, what)
    blocking = sum(finding.state == "blocks" for finding in findings)
    end = (
        f"{blocking} thing{'s' if blocking > 1 else ''} in the way." if blocking else "Nothing is in the way."
    )
    return Group(table, Text(f"\n{end}"))
