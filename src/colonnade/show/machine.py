"""The devices of this machine, as a table."""

import platform

import psutil
from rich.table import Table

from colonnade.hardware.cards import Card


def facts(cards: tuple[Card, ...]) -> dict[str, object]:
    """What `colonnade devices --json` prints."""
    return {
        "cpu": {
            "cores": psutil.cpu_count(),
            "memory": psutil.virtual_memory().total,
            "name": platform.machine(),
        },
        "cards": [
            {"index": c.index, "uuid": c.uuid, "bus_id": c.bus_id, "name": c.name, "memory": c.memory}
            for c in cards
        ],
    }


def table(cards: tuple[Card, ...]) -> Table:
    """The CPU and the cards, with their memory."""
    table = Table(title="Devices of this machine", title_justify="left")
    for column in ("device", "what", "UUID", "PCI bus"):
        table.add_column(column, overflow="fold")
    table.add_column("memory", justify="right")
    memory = psutil.virtual_memory().total
    table.add_row("CPU", f"{psutil.cpu_count()} cores, {platform.machine()}", "", "", _gib(memory))
    for card in cards:
        table.add_row(f"card {card.index}", card.name, card.uuid, card.bus_id, _gib(card.memory))
    return table


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
