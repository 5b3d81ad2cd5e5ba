"""The command line: one command, one function."""

import json
import os
import sys
from contextlib import nullcontext, redirect_stdout
from typing import Annotated

import typer
from rich.console import Console

from colonnade import __version__
from colonnade.errors import ColonnadeError, MissingTensorFlow

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Write a training function for one device; run it on all of them.",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version)
    ] = False,
) -> None:
    """Options of every command."""


@app.command()
def demo() -> None:
    """See it work: the same fit on one device and on all of them."""
    from colonnade.show.demo import demo as run_demo

    run_demo(Console())


@app.command()
def devices(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List the devices of this machine."""
    from colonnade.hardware.cards import detect
    from colonnade.show import machine

    if as_json:
        print(json.dumps(machine.facts(detect()), indent=2))
    else:
        Console().print(machine.table(detect()))


@app.command()
def verify(
    function: Annotated[str, typer.Argument(help="module:function, from the current directory.")],
    devices: Annotated[int, typer.Option(min=1, help="How many devices; virtual ones without cards.")] = 2,
    join: Annotated[
        str, typer.Option(help="For outputs without a batch dim: mean, sum or stack.")
    ] = "concat",
    example: Annotated[
        str | None,
        typer.Option(help="The example batch in the module; <function>_example by default.", metavar="NAME"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare a function on several devices with one; exit code 0 when equal, 1 when not."""
    # What the module prints is no part of the JSON.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        from colonnade.run.load import verify_by_name

        report = verify_by_name(function, devices=devices, join=join, example=example)
    print(report.to_json() if as_json else report)
    raise typer.Exit(0 if report else 1)


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    # TensorFlow's start-up notes about CPU instructions help nobody here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        app()
    except ColonnadeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as missing:
        if missing.name not in ("tensorflow", "keras"):
            raise
        print(MissingTensorFlow("this command"), file=sys.stderr)
        sys.exit(2)
