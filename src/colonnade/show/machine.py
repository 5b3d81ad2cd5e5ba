"""`colonnade devices`: the devices of a machine, who uses them, and the links between them."""

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict

import psutil
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from colonnade.describe.speeds import level
from colonnade.describe.topology import Link, Topology
from colonnade.hardware.cards import Card, Machine

LEGEND = {
    "MEM": ("green", "the same memory; nothing is copied"),
    "NV": ("bold green", "that many NVLinks"),
    "PIX": ("cyan", "at most one PCIe bridge"),
    "PXB": ("cyan", "several PCIe bridges, not the CPU"),
    "PHB": ("yellow", "through the CPU's PCIe host bridge"),
    "NODE": ("yellow", "between host bridges of one NUMA node"),
    "SYS": ("red", "between NUMA nodes"),
    "NET": ("magenta", "another machine"),
}


def facts(machine: Machine, *, here: bool = True) -> dict[str, object]:
    """What `colonnade devices --json` prints; with the CPU if that machine is `here`."""
    cpu = {
        "cores": psutil.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "name": platform.machine(),
    }
    return {
        **({"cpu": cpu} if here else {}),
        **{key: value for key, value in asdict(machine).items() if key != "topology"},
        "topology": json.loads(machine.topology.to_json()),
    }


def screen(machine: Machine, *, here: bool = True) -> RenderableType:
    """The devices, their processes, and their links where there is more than one card."""
    parts: list[RenderableType] = [devices(machine, here=here)]
    if any(card.instances for card in machine.cards):
        parts.append(instances(machine.cards))
    if any(card.processes for card in machine.cards):
        parts.append(processes(machine.cards))
    if len(machine.cards) > 1:
        parts += [Text("Links"), links(machine.topology)]
    parts += [Text(f"{fault}; see colonnade doctor", "bold red") for fault in machine.faults]
    parts += [Text(f"not known: {fact}", "yellow") for fact in machine.unanswered]
    return Group(*parts)


def devices(machine: Machine, *, here: bool = True) -> Table:
    """The CPU and the cards, with their memory and how busy they are."""
    title = "Devices of this machine" if here else "Devices of a recorded machine"
    table = _table(title, "device", "what", "*memory", "*free", "*busy", "PCI bus", "UUID")
    if here:
        memory = psutil.virtual_memory()
        what = f"{psutil.cpu_count()} cores, {platform.machine()}"
        table.add_row("CPU", what, gib(memory.total), gib(memory.available), "", "", "")
    for card in machine.cards:
        busy = "" if card.utilisation is None else f"{card.utilisation}%"
        name = f"{card.name}, MIG" if card.mig else card.name
        table.add_row(
            f"card {card.index}",
            name,
            gib(card.memory),
            gib(card.free),
            busy,
            card.bus_id[-12:].lower(),
            card.uuid,
        )
    return table


def instances(cards: tuple[Card, ...]) -> Table:
    """The parts of cards in MIG mode; CUDA uses one of them at a time."""
    table = _table("MIG instances", "card", "*instance", "*memory", "UUID")
    for card in cards:
        for part in card.instances:
            place = f"{part.gpu_instance}/{part.compute_instance}"
            table.add_row(f"card {card.index}", place, gib(part.memory), part.uuid)
    return table


def processes(cards: tuple[Card, ...]) -> Table:
    """Who holds memory of which card, or of which of its instances."""
    table = _table("Processes", "card", "*process", "user", "*memory")
    for card in cards:
        place = {
            process.pid: f", {part.gpu_instance}/{part.compute_instance}"
            for part in card.instances
            for process in part.processes
        }
        for process in card.processes:
            where = f"card {card.index}{place.get(process.pid, '')}"
            table.add_row(where, str(process.pid), process.user or "?", gib(process.memory))
    return table


def links(topology: Topology) -> Text:
    """The matrix of links in colour, and what the labels in it mean."""
    n = range(len(topology))
    width = max(6, *(len(label(link)) + 1 for row in topology.links for link in row))
    text = Text().append(" " * 5 + "".join(str(j).ljust(width) for j in n).rstrip(), "bold")
    for i in n:
        text.append(f"\n{i:>3}  ", "bold")
        for j in n:
            link = topology.links[i][j]
            text.append(label(link).ljust(width) if j < n[-1] else label(link), colour(link))
    for line, style in _legend(topology):
        text.append(f"\n{line}", style)
    return text


def figures(topology: Topology) -> RenderableType:
    """What was measured: the rate of a matrix product on each device, and the copies between cards."""
    table = _table("Measured", "device", "what", "*matrix product")
    for i, device in enumerate(topology.devices):
        rate = "" if device.achieved is None else f"{device.achieved / 1e9:,.4g} GFLOP/s"
        table.add_row(str(i), device.name, rate)
    if len(topology) == 1:
        return table
    copies = _table("Copies", "*from", "*to", "link", "*bandwidth", "*latency")
    for i, row in enumerate(topology.links):
        for j, link in enumerate(row):
            if i != j:
                cells = f"{link.bandwidth / 1e9:.3g} GB/s", f"{link.latency * 1e6:.3g} us"
                copies.add_row(str(i), str(j), label(link), *cells)
    return Group(table, copies)


def label(link: Link) -> str:
    """The kind of a link, with a mark where there is no peer access."""
    return link.kind if link.peer else f"{link.kind}!"


def colour(link: Link) -> str:
    return LEGEND.get(level(link.kind), ("dim", ""))[0]


def _legend(topology: Topology) -> Iterator[tuple[str, str]]:
    links = {link for row in topology.links for link in row if link.kind != "X"}
    for link in sorted(links, key=lambda link: link.strength, reverse=True):
        style, meaning = LEGEND[level(link.kind)]
        speed = "" if link.kind == "MEM" else f", about {link.bandwidth / 1e9:.3g} GB/s"
        yield f"     {label(link):<6}{meaning}{speed}", style
    if any(not link.peer for link in links):
        yield "     !     no peer access: copies go through the memory of the host", ""


def _table(title: str, *columns: str) -> Table:
    """A table; a column whose name starts with * holds numbers."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        number = column.startswith("*")
        # On a narrow screen names break between words, and of a UUID the beginning will do.
        table.add_column(
            column.lstrip("*"),
            justify="right" if number else "left",
            no_wrap=column not in ("what", "UUID"),
            overflow="ellipsis",
        )
    return table


def gib(size: int | None) -> str:
    return "" if size is None else f"{size / 2**30:.1f} GiB"
