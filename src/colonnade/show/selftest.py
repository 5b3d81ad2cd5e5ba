"""What `colonnade selftest` prints."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from colonnade.run.selftest.verdict import Result

MARKS = {"passed": ("passed", "green"), "failed": ("FAILED", "bold red"), "not applicable": ("n/a", "dim")}


def report(results: Sequence[Result]) -> RenderableType:
    """Every check with its outcome; of one that failed, also what was compared, and what is allowed.

    The words of others, as of an error, are shown here and nowhere else.
    """
    table = Table(box=None, padding=(0, 1), show_header=False)
    for column in ("state", "check"):
        table.add_column(column, no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("what", overflow="fold")
    for result in results:
        mark, colour = MARKS[result.state]
        what = Text(f"{result.found}: {result.words}" if result.words else result.found)
        if result.state == "failed":
            what.append(f"\ncompares: {result.compares}", "dim")
            what.append(f"\nallowed:  {result.tolerance}", "dim")
        for pair, speed in result.figures.get("bandwidth", {}).items():
            label = f"{speed['link']}: {speed['published GB/s']} published"
            what.append(f"\n{pair}: {speed['GB/s']} GB/s ({label})", "dim")
        table.add_row(Text(mark, colour), result.check, f"{result.seconds:.1f} s", what)
    count = {state: sum(result.state == state for result in results) for state in MARKS}
    end = f"{count['passed']} passed, {count['failed']} failed, {count['not applicable']} not applicable."
    more = " Please report it, with what --bundle FILE writes." if count["failed"] else ""
    return Group(table, Text(f"\n{end}{more}", "bold red" if count["failed"] else ""))


def followed(results: Iterable[Result], names: Sequence[str]) -> Iterator[Result]:
    """The results as they come, while a line on the error output says what is being checked."""
    with Console(stderr=True).status(f"checking: {names[0]}") as status:
        for at, result in enumerate(results, start=1):
            yield result
            status.update(f"checking: {names[at]}" if at < len(names) else "done")
