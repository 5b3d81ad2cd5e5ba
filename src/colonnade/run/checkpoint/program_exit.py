"""The end of a program that can go on later: its exit code asks to be started again."""

import shlex
import sys
from pathlib import Path
from typing import NoReturn

from colonnade.errors import RESUMABLE


def interactive() -> bool:
    """Whether somebody sits at a prompt, whose session must not end with the fit."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def leave_for_later(error: Exception) -> NoReturn:
    """Ask to be started again, because of what may be over by then, unless somebody sits at a prompt."""
    if interactive():
        raise error
    print(f"colonnade: {error}", file=sys.stderr, flush=True)
    raise SystemExit(RESUMABLE) from error


def leave(step: int | None, directory: Path) -> NoReturn:
    """End the program with the exit code that asks to be started again, and say how to go on."""
    saved = "no step" if step is None else f"step {step}"
    print(
        f"colonnade: interrupted; {saved} is saved in {directory}. To go on, run the same again:\n"
        f"  {shlex.join(sys.orig_argv)}",
        file=sys.stderr,
        flush=True,
    )
    raise SystemExit(RESUMABLE)
