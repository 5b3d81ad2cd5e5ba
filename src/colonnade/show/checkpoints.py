"""`colonnade checkpoints`: the saved steps in a directory, as a table."""

import math
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.checkpoint.directory import Archive, Saved

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def look(directory: Path, *, thorough: bool) -> list[Saved]:
    """What is saved in a directory; thorough reads every byte."""
    if not directory.is_dir():
        problem = Problem("DIR", str(directory), "is not a directory", "Name the one given to cn.Checkpoint")
        raise InvalidArgument("colonnade checkpoints", [problem])
    return Archive(directory).saved(thorough=thorough)


def facts(saved: Sequence[Saved], *, thorough: bool) -> list[dict[str, object]]:
    """What `colonnade checkpoints --json` prints; `verified` says whether every byte was read."""
    return [
        {
            "step": one.step,
            "path": str(one.path),
            "bytes": one.size,
            "written": one.manifest.written if one.manifest else None,
            "examples": one.manifest.examples if one.manifest else None,
            "loss": one.manifest.loss if one.manifest and math.isfinite(one.manifest.loss) else None,
            "devices": one.manifest.devices if one.manifest else None,
            "whole": one.flaw is None,
            "verified": thorough,
            "flaw": one.flaw,
        }
        for one in saved
    ]


def table(saved: Sequence[Saved], *, thorough: bool) -> Table:
    """Every saved step, oldest first: its size, its age, and whether it is whole."""
    table = Table(title="Saved steps", title_justify="left", caption_justify="left")
    for name in ("step", "size", "age", "examples", "loss", "devices"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state")
    for one in saved:
        manifest = one.manifest
        facts = (
            (
                age(time.time() - datetime.fromisoformat(manifest.written).timestamp()),
                f"{manifest.examples:,}",
                f"{manifest.loss:.4g}",
                str(manifest.devices),
            )
            if manifest
            else ("", "", "", "")
        )
        state = (
            Text("whole", style="green") if one.flaw is None else Text(f"damaged: {one.flaw}", style="red")
        )
        table.add_row(str(one.step), size(one.size), *facts, state)
    read = (
        "Every byte was read."
        if thorough
        else "Manifests and sizes were looked at; --verify reads every byte."
    )
    table.caption = read if saved else "Nothing is saved here."
    return table


def size(count: float) -> str:
    """
    >>> size(900), size(3 * 2**20)
    ('900 B', '3.0 MiB')
    """
    power = 0
    while count >= 1024 and power < len(UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.1f} {UNITS[power]}" if power else f"{count:.0f} B"


def age(seconds: float) -> str:
    """
    >>> age(42), age(3 * 3600 + 120), age(3 * 86400)
    ('42 s', '3 h', '3 d')
    """
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
