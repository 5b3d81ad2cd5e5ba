"""`colonnade leases`: who holds which cards and who waits, as a table."""

import contextlib
import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from colonnade.fleet.lease import LeaseClaim, claims

SHORT = 16  # letters of a card's name in the table; the beginning of a UUID says which it is
LOOKS = 1.0  # seconds between two looks of --watch


def show(console: Console, directory: Path | None, *, as_json: bool, watch: bool) -> None:
    """Print the leases once, or keep showing them until interrupted: as JSON, one line for each change."""
    if not watch:
        everyone = claims(directory)
        if as_json:
            print(json.dumps(facts(everyone), indent=2))
        else:
            console.print(table(everyone))
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _stream(directory)
        else:
            with Live(console=console, auto_refresh=False) as screen:
                while True:
                    screen.update(table(claims(directory)), refresh=True)
                    time.sleep(LOOKS)


def _stream(directory: Path | None) -> None:
    before = None
    while True:
        now = json.dumps(facts(claims(directory)))
        if now != before:
            print(now, flush=True)
        before = now
        time.sleep(LOOKS)


def facts(claims: Sequence[LeaseClaim]) -> list[dict[str, object]]:
    """What `colonnade leases --json` prints."""
    return [
        {
            "readable": claim.readable,  # if not, it may hold any card, and nobody gets one
            "cards": list(claim.slots),
            "waits_for": 0 if claim.slots else claim.count,
            "memory": float(claim.memory),
            "user": claim.user,
            "pid": claim.pid,
            "host": claim.host,
            "since": claim.since,
            "command": list(claim.command),
        }
        for claim in claims
    ]


def table(claims: Sequence[LeaseClaim]) -> Table:
    """Who has which card, and below, who waits, in order."""
    table = Table(title="Leases of this machine", title_justify="left")
    # Only the command gives way on a narrow screen.
    table.add_column("card", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("user", no_wrap=True)
    table.add_column("process", justify="right", no_wrap=True)
    table.add_column("since", no_wrap=True)
    table.add_column("command")
    for claim in claims:
        for slot in claim.slots:
            _add(table, slot if len(slot) <= SHORT else f"{slot[:SHORT]}…", claim)
    for claim in claims:
        if not claim.readable:
            why = f"{claim.number}.json cannot be read, so no card is given until its owner ends"
            table.add_row("any", "?", claim.user, "?", "?", why)
    table.add_section()
    for claim in (claim for claim in claims if claim.readable and not claim.slots):
        place = 1 + sum(other.blocks(claim) for other in claims)
        _add(table, f"#{place} in line, for {claim.count}", claim)
    if not claims:
        table.caption = "No card is leased, and nobody waits."
    return table


def _add(table: Table, what: str, claim: LeaseClaim) -> None:
    table.add_row(
        _printable(what),
        f"{float(claim.memory):.0%}",
        claim.user,
        str(claim.pid),
        datetime.fromisoformat(claim.since).astimezone().strftime("%m-%d %H:%M"),
        Text(_printable(" ".join(claim.command)), no_wrap=True, overflow="ellipsis"),
    )


def _printable(text: str) -> str:
    """What others wrote must not steer this terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
