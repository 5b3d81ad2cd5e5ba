"""`colonnade` itself: its version, what it prints and reads, and how a mistake ends."""

import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from colonnade import __version__
from colonnade.errors import ColonnadeError, InvalidArgument, MissingTensorFlow, Problem

if TYPE_CHECKING:
    from rich.console import RenderableType

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


def print_either(as_json: bool, plain: object, screen: "RenderableType") -> None:
    """Print JSON, or the screen; into a pipe as wide as the widest table."""
    if as_json:
        print(json.dumps(plain, indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 130).print(screen)


def text_of(path: Path, command: str = "colonnade devices", option: str = "--topology") -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(
            option, str(path), f"cannot be read ({error})", "Name a text file, or - for standard input"
        )
        raise InvalidArgument(command, [problem]) from None


def main() -> None:
    """Run a command; a mistake of the user's is a message and exit code 2, not a traceback."""
    # TensorFlow's start-up notes about CPU instructions help nobody here.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="surrogateescape")  # names of files in another encoding, as they are
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
