"""The command line: one command, one function."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from colonnade import __version__
from colonnade.errors import ColonnadeError

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


Leases = Annotated[
    Path | None,
    typer.Option("--leases", metavar="DIR", help="Where the leases are; else COLONNADE_LEASES says it."),
]


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    cards: Annotated[int | None, typer.Option(help="How many cards; 1, or all virtual ones.")] = None,
    memory: Annotated[str | None, typer.Option(help="The share of each card, such as 0.5.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long to wait: 90s, 1h30m.")] = None,
    share: Annotated[bool, typer.Option("--share", help="Also cards in use without a lease.")] = False,
    retries: Annotated[int, typer.Option(help="Start again so often after exit code 75.")] = 0,
    virtual: Annotated[int | None, typer.Option(help="Lease from so many virtual cards.")] = None,
    leases: Leases = None,
) -> None:
    """Wait for cards, and run a program on them: colonnade run --cards 2 -- python train.py

    Returns the program's exit code, 128 + n if signal n ended it, 124 if no cards came free in time.
    """
    from colonnade.fleet.launch import run as launch

    code = launch(
        command,
        cards=cards,
        memory=memory,
        timeout=timeout,
        share=share,
        retries=retries,
        virtual=virtual,
        directory=leases,
    )
    raise typer.Exit(code)


@app.command("leases")
def show_leases(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing, until Ctrl-C.")] = False,
    leases: Leases = None,
) -> None:
    """Show who has which card, and who waits."""
    from colonnade.show.leases import show

    show(Console(), leases, as_json=as_json, watch=watch)


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    # TensorFlow's start-up notes about CPU instructions help nobody here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        app()
    except ColonnadeError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
