"""`colonnade sweep` and `cn.sweep`: run trials on all cards, show how they go, and sum up."""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from colonnade.errors import RESUMABLE, ColonnadeError
from colonnade.sweeps.objective import named

if TYPE_CHECKING:
    import optuna

    from colonnade.sweeps.settings import SweepSettings
    from colonnade.sweeps.study import Swept

OBJECTIVE = re.compile(r"[\w./-]+:\w+")  # as against a program and its arguments
LOG_LINES = 10  # of a failed trial's log that are shown
FAILURES = 5  # failed trials that are shown


def sweep(
    objective: Callable[..., Any] | str,
    *,
    trials: int,
    cards: int = 1,
    memory: float | str = 1,
    virtual: int | None = None,
    direction: str = "minimize",
    timeout: float | str | None = None,
    study: str | None = None,
    storage: str | None = None,
    sampler: str = "tpe",
    pruner: str = "median",
    seed: int | None = None,
    retries: int = 0,
    stall: float | str | None = None,
    reuse: bool = False,
    folder: str | Path | None = None,
    progress: bool = True,
) -> "optuna.Study":
    """Run trials of an Optuna objective, each in a process of its own on cards of its own.

    Args:
        objective: a function of a trial, at the top level of a module or of a script whose other code is
            under `if __name__ == "__main__"`; or its name, `module:function`.
        trials: how many trials the study is to have in all. Run again, it goes on where it was.
        cards: how many cards a trial gets.
        memory: the share of each card, such as 0.5 for two trials on a card.
        virtual: divide the CPU into this many virtual cards; without cards, one for each core by default.
        direction: `minimize` or `maximize`.
        timeout: seconds, or a time span such as `2h`, after which trials are asked to save and to end.
        study: the study's name; that of the objective by default.
        storage: a URL of SQLite, PostgreSQL, MySQL or Redis; by default a journal in the study's folder.
        sampler: `tpe`, `random`, `qmc`, `cmaes` or `gp`.
        pruner: `median`, `hyperband`, `halving` or `none`.
        seed: makes the choices of the sampler follow from it.
        retries: how often a trial that was killed or hung is tried again.
        stall: minutes, or a time span, without a sign after which a trial counts as hung.
        reuse: one process for many trials, in place of one for each.
        folder: where the folders of studies are; `studies` by default.
        progress: whether to show how it goes.

    Returns:
        The study. Ctrl-C ends it politely, and returns what was reached.
    """
    _check_packages()
    from colonnade.sweeps.settings import SweepSettings

    settings = SweepSettings(
        objective=objective if isinstance(objective, str) else named(objective),
        trials=trials,
        cards=cards,
        memory=str(memory),
        virtual=virtual,
        direction=direction,
        timeout=_span(timeout, "s"),
        study=study,
        storage=storage,
        sampler=sampler,
        pruner=pruner,
        seed=seed,
        retries=retries,
        stall=_span(stall, "m"),
        reuse=reuse,
        folder=None if folder is None else Path(folder),
    )
    return show(Console(), settings, progress=progress).study


def _span(given: float | str | None, unit: str) -> str | None:
    return f"{given:f}{unit}" if isinstance(given, int | float) else given


def command(
    console: Console, arguments: Sequence[str], options: dict[str, Any], fix: Sequence[str] = ()
) -> int:
    """What `colonnade sweep` does with an objective, or with a program and its arguments; its exit code."""
    _check_packages()
    from colonnade.sweeps.repeat import repeat
    from colonnade.sweeps.settings import SweepSettings

    is_objective = len(arguments) == 1 and OBJECTIVE.fullmatch(arguments[0])
    what = {"objective": arguments[0]} if is_objective else {"command": tuple(arguments)}
    settings = SweepSettings(**what, **options)
    if fix:
        return repeat(settings, fix)
    return exit_code(show(console, settings))


def show(console: Console, settings: "SweepSettings", *, progress: bool = True) -> "Swept":
    """Run a sweep, show how it goes, and print what came of it."""
    from colonnade.show.report.study import write_page
    from colonnade.show.sweep_screen import SweepScreen
    from colonnade.sweeps.study import conduct

    with SweepScreen(console, show=progress) as screen:
        swept = conduct(settings, screen)
    page = write_page(swept.folder)
    if progress:
        for line in summary(swept, page):
            console.print(line, highlight=False, soft_wrap=True)
    return swept


def exit_code(swept: "Swept") -> int:
    """0 if it came to its end; 75 if it is to go on; 1 if no trial, or not all of a grid, succeeded."""
    if swept.stopped_by:
        return RESUMABLE
    counts = swept.board.counts
    some_failed_of_all = bool(swept.settings.grid) and counts["failed"] > 0
    return 0 if counts["complete"] and not some_failed_of_all else 1


def summary(swept: "Swept", page: Path) -> Iterator[Text]:
    """What is said at the end: the best, what mattered, how to repeat it, what failed and why."""
    from colonnade.show.report.study import failures, importance
    from colonnade.show.sweep_screen import settings, summary_line
    from colonnade.sweeps.repeat import repeat_line
    from colonnade.sweeps.storage import without_password

    board = swept.board
    yield Text()
    yield summary_line(board)
    if board.counts["running"]:
        yield Text(f"{board.counts['running']} still run elsewhere")
    if board.best is not None:
        best = board.best
        yield Text(f"best: {best.value:.6g}, trial {best.number}, {settings(best.params)}", "bold")
        weights = importance(swept.study)
        if weights:
            shares = ", ".join(f"{name} {share:.0%}" for name, share in weights.items())
            yield Text(f"importance of the parameters: {shares}")
        yield Text("to run the best again:")
        yield Text(f"  {repeat_line(swept.settings, best.params)}")
    failed = failures(swept.study, swept.folder)
    for number, reason, log in failed[:FAILURES]:
        yield Text(f"trial {number} failed: {reason}", "red")
        yield from (Text(f"  {line}", "dim") for line in log[-LOG_LINES:])
        yield Text(f"  its log: {here(swept.folder / 'trials' / f'{number:04d}' / 'log.txt')}", "dim")
    if len(failed) > FAILURES:
        yield Text(f"and {len(failed) - FAILURES} more failed")
    yield Text(f"page: {here(page)}")
    stored = swept.settings.storage
    where = here(swept.folder / "journal.log") if stored is None else without_password(stored)
    yield Text(f"to look around: optuna-dashboard {where}")
    if swept.stopped_by:
        yield Text(f"ended by {swept.stopped_by}; the same command goes on where it was", "magenta")


def here(path: Path) -> str:
    """A path as one would type it in this directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _check_packages() -> None:
    try:
        for package in ("optuna", "plotly", "jinja2"):
            import_module(package)
    except ModuleNotFoundError as missing:
        raise ColonnadeError(
            f"A sweep needs {missing.name}, which is not installed. "
            "Install what it needs: pip install 'colonnade[sweep]'"
        ) from None
