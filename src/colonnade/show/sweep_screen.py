"""What a sweep shows while it runs: a live table in a terminal, lines elsewhere."""

import sys
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from colonnade.sweeps.board import Board, RunningTrial
from colonnade.sweeps.slots.ending import CUT, Ending

ROWS = 24  # trials that the table shows
MARKS = {"complete": "green", "pruned": "yellow", "failed": "red", CUT: "magenta"}


class SweepScreen:
    """Watches a sweep; a context manager around it."""

    def __init__(self, console: Console, *, show: bool = True) -> None:
        self._console, self._show = console, show
        live = show and console.is_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> "SweepScreen":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begun(self, trial: RunningTrial) -> None:
        if not self._live:
            again = f", attempt {trial.attempt}" if trial.attempt > 1 else ""
            self._print(
                Text(f"trial {trial.number} begins on {cards(trial.cards)}{again}{_tail(trial.params)}")
            )

    def ended(self, trial: RunningTrial, ending: Ending) -> None:
        said = Text(f"trial {trial.number} ")
        word = "is to be run again" if ending.kind == CUT else ending.kind
        said.append(word, MARKS[ending.kind])
        if ending.value is not None:
            said.append(f" {ending.value:.6g}")
        said.append(f" after {duration(trial.seconds)}{_tail(trial.params)}")
        if ending.reason:
            said.append(f": {ending.reason}")
        self._print(said)

    def noted(self, text: str) -> None:
        self._print(Text(text, "cyan"))

    def tick(self, board: Board) -> None:
        if self._live:
            self._live.update(screen(board), refresh=True)

    def _print(self, text: Text) -> None:
        if self._show:
            self._console.print(text, highlight=False, soft_wrap=True)
            sys.stdout.flush()


def screen(board: Board) -> RenderableType:
    """The trials that run, and where the study is."""
    table = Table(title=f"study {board.study}", title_justify="left", expand=False)
    for name, side in (("trial", "right"), ("card", "left"), ("parameters", "left")):
        table.add_column(name, justify=side, no_wrap=name != "parameters")  # type: ignore[arg-type]
    for name in ("step", "value", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in sorted(board.running.values(), key=lambda one: one.number)[:ROWS]:
        table.add_row(
            str(trial.number),
            cards(trial.cards),
            settings(trial.params),
            "" if trial.step is None else str(trial.step),
            "" if trial.value is None else f"{trial.value:.5g}",
            duration(trial.seconds),
        )
    hidden = len(board.running) - ROWS
    lines: list[RenderableType] = [table]
    if hidden > 0:
        lines.append(Text(f"and {hidden} more", "dim"))
    lines.append(summary_line(board))
    if board.best is not None:
        best = board.best
        lines.append(Text(f"best: {best.value:.6g}, trial {best.number}{_tail(best.params)}", "bold"))
    return Group(*lines)


def summary_line(board: Board) -> Text:
    """Counts, slots and the time left, in one line."""
    said = Text(f"{board.finished} of {board.wanted} finished: ")
    said.append(f"{board.counts['complete']} complete", MARKS["complete"])
    for kind in ("pruned", "failed"):
        said.append(f", {board.counts[kind]} {kind}", MARKS[kind] if board.counts[kind] else "")
    if board.slots:
        said.append(f"; {board.slots} slot{'' if board.slots == 1 else 's'}")
    if board.in_line:
        said.append(f", another is number {board.in_line} in line")
    if board.seconds_left is not None:
        said.append(f"; about {duration(board.seconds_left)} left")
    return said


def settings(params: dict[str, Any]) -> str:
    """Parameters in short.

    Example:
        >>> settings({"rate": 0.0123456, "kind": "adam"})
        'rate=0.01235 kind=adam'
    """
    return " ".join(
        f"{name}={setting:.4g}" if isinstance(setting, float) else f"{name}={setting}"
        for name, setting in params.items()
    )


def cards(names: tuple[str, ...]) -> str:
    """The names of cards; the beginning of a long one says which it is."""
    return ", ".join(name if len(name) <= 16 else f"{name[:12]}…" for name in names)


def duration(seconds: float) -> str:
    """A time span, as one reads it.

    Example:
        >>> duration(0.21), duration(75), duration(3700)
        ('0.2 s', '1m15s', '1h01m')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def _tail(params: dict[str, Any]) -> str:
    return f", {settings(params)}" if params else ""
