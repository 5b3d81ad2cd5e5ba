"""The bar of a fit that goes on: in a terminal by Rich, in a notebook as one line that is drawn again."""

import time
from html import escape
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

# A notebook draws again at most so often, in seconds.
PAUSE = 0.1


class Bar(Protocol):
    """Shows how far a fit is."""

    def start(self) -> None: ...

    def advance(self, steps: int, said: str) -> None:
        """So many steps more; `said` stands beside the bar."""

    def stop(self) -> None: ...


def bar_for(console: Console, expected: int | None) -> Bar | None:
    """The bar that fits where the program runs; None where lines are better, as in a file."""
    if console.is_jupyter:
        return NotebookBar(expected)
    return TerminalBar(console, expected) if console.is_terminal else None


class TerminalBar:
    """A bar at the bottom of a terminal."""

    def __init__(self, console: Console, expected: int | None) -> None:
        self._bar = RichProgress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", total=expected, said="")

    def start(self) -> None:
        self._bar.start()

    def advance(self, steps: int, said: str) -> None:
        self._bar.update(self._task, advance=steps, said=said)

    def stop(self) -> None:
        self._bar.stop()


class NotebookBar:
    """One line under a cell, which is drawn again in its place."""

    def __init__(self, expected: int | None) -> None:
        self._expected, self._done, self._said = expected, 0, ""
        self._handle: Any = None
        self._drawn = 0.0

    def start(self) -> None:
        from IPython.display import HTML, display

        self._handle = display(HTML(self._html()), display_id=True)

    def advance(self, steps: int, said: str) -> None:
        self._done, self._said = self._done + steps, said
        if time.monotonic() - self._drawn > PAUSE:
            self._draw()

    def stop(self) -> None:
        self._draw()

    def _draw(self) -> None:
        from IPython.display import HTML

        self._drawn = time.monotonic()
        if self._handle is not None:  # there is none where nobody shows anything
            self._handle.update(HTML(self._html()))

    def _html(self) -> str:
        known = f' value="{self._done}" max="{self._expected}"' if self._expected else ""
        total = f"/{self._expected:,}" if self._expected else ""
        return (
            '<div class="colonnade" style="display:flex;gap:.8em;align-items:center;white-space:nowrap;'
            'overflow:hidden;font-variant-numeric:tabular-nums">'
            f'<span>step {self._done:,}{total}</span><progress style="width:14em"{known}></progress>'
            f"<span>{escape(self._said)}</span></div>"
        )
