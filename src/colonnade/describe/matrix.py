"""Reads the matrices that `nvidia-smi topo` prints, and TensorFlow's log lines about peer access.

        A0   A1   mlx5_0  CPU Affinity  NUMA Affinity         a header: cards, adapters, affinities
  A0     X   PIX  PHB     0-7           0                     a row of a card: a cell for each
  A1    PIX   X   PHB     0-7           0                     of the first columns
  mlx5_0 PHB PHB   X                                          adapters are left out

A card's column is one whose name is the first column's word with another number. So the reader
needs no knowledge of what a vendor calls a card.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from colonnade.describe import speeds
from colonnade.errors import InvalidArgument, Problem

Labels = tuple[tuple[str, ...], ...]
Peers = tuple[tuple[bool, ...], ...]

# Why a driver has no peer access: chipset, card, topology, not supported, disabled, unknown.
PEER_CODES = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False, "U": False}
OLD_LABELS = {"SOC": "SYS"}  # what drivers before 2017 printed

MOST = 1024  # a log that names a higher device is not a log

_COLOUR = re.compile(r"(?:\x1b|\^\[)?\[[0-9;]*[A-Za-z]|\x1b\([A-Z]")
_CARD = re.compile(r"([A-Za-z]+)[0-9]{1,4}")
_AFFINITY = re.compile(r"CPU Affinity|NUMA Affinity|\S+ NUMA ID")
_REFUSED = re.compile(
    r"cannot enable peer access from device ordinal ([0-9]{1,6}) to device ordinal ([0-9]{1,6})"
    r"|Peer access not supported between device ordinals ([0-9]{1,6}) and ([0-9]{1,6})"
)
_LOG_ROW = re.compile(r"(?:^|[\s\]])([0-9]{1,6}):\s+((?:[YN]\s+)*[YN])\s*$")
_LOG_DEVICE = re.compile(r"device: ([0-9]{1,6}), name: ([^,]+), pci bus id")
_LOG_FOUND = re.compile(r"Found device ([0-9]{1,6}) with properties")
_LOG_VISIBLE = re.compile(r"Adding visible \w+ devices: ([0-9, ]+)")


@dataclass(frozen=True)
class Matrix:
    """What a text says about n cards; `peers` is None where it says nothing of peer access."""

    names: tuple[str, ...]
    kinds: Labels
    peers: Peers | None
    numa: tuple[int | None, ...]


@dataclass
class _Block:
    """A header and the rows of its cards."""

    columns: list[str]  # cards and adapters
    affinities: list[tuple[str, int]]  # name, and where it starts in the header
    rows: dict[str, str] = field(default_factory=dict)

    @property
    def cards(self) -> list[str]:
        word = _CARD.fullmatch(self.columns[0])
        return [c for c in self.columns if word and (m := _CARD.fullmatch(c)) and m[1] == word[1]]


def read(text: str, p2p: str | None = None) -> Matrix:
    """Read a matrix or a log; all that is wrong with it comes in one error."""
    lines = _lines("text", text)
    tables, refused = _tables("text", lines)
    peers = next((_codes(cells) for _, cells in tables if _is_peer_table(cells)), None)
    if p2p is not None:
        peers = _peers(p2p)
    links = [(block, cells) for block, cells in tables if not _is_peer_table(cells)]
    if links:
        block, cells = links[0]
        numa = tuple(_numa(block, name) for name in block.cards)
        found = Matrix(tuple(block.cards), _labels(cells), peers, numa)
    elif refused:
        raise refused[0]
    else:
        found = _from_log(text, lines, peers)
    if peers is not None and len(peers) != len(found.names):
        rule = f"is for {len(peers)} cards, and the links are for {len(found.names)}"
        raise _refuse("text" if p2p is None else "p2p", p2p or text, rule, "Take both from the same machine")
    return found


def _peers(text: str) -> Peers:
    lines = _lines("p2p", text)
    tables, refused = _tables("p2p", lines)
    for _, cells in tables:
        if _is_peer_table(cells):
            return _codes(cells)
    if refused:
        raise refused[0]
    if tables and len(tables[0][1]) == 1:
        return ((True,),)
    if logged := _logged_peers(lines):
        return logged
    rule, fix = "holds no matrix of peer access", "Copy all of what `nvidia-smi topo -p2p r` prints"
    raise _refuse("p2p", text, rule, fix)


def _tables(argument: str, lines: list[str]) -> tuple[list[tuple[_Block, Labels]], list[InvalidArgument]]:
    """The matrices of a text, and what is wrong with those that cannot be read."""
    tables, refused = [], []
    for block in _blocks(lines):
        try:
            tables.append((block, _cells(argument, block)))
        except InvalidArgument as error:
            refused.append(error)
    return tables, refused


def _lines(argument: str, text: object) -> list[str]:
    if not isinstance(text, str):
        raise _refuse(argument, text, "must be text", "Read the file first: Path(...).read_text()")
    return [
        line.lstrip("> \u200b") if line.lstrip().startswith(">") else line
        for line in _COLOUR.sub("", text).splitlines()
    ]


def _blocks(lines: list[str]) -> Iterator[_Block]:
    """Headers with rows below them. A row has a cell X, where it meets itself; a header has none."""
    block: _Block | None = None
    for line in lines:
        words = line.split()
        if not words or not _CARD.fullmatch(words[0]):
            continue
        if "X" in words[1:]:
            if block and words[0] in block.cards:
                block.rows.setdefault(words[0], line)
            continue
        start = _AFFINITY.search(line)
        columns = line[: start.start() if start else None].split()
        if not columns or (len(set(columns)) < len(columns)):
            continue
        if block and block.rows:
            yield block
        block = _Block(columns, [(m[0], m.start()) for m in _AFFINITY.finditer(line)])
    if block and block.rows:
        yield block


def _cells(argument: str, block: _Block) -> Labels:
    """The cells between cards, row by row."""
    cards, at = block.cards, [block.columns.index(card) for card in block.cards]
    problems, found = [], []
    for i, card in enumerate(cards):
        cells = block.rows.get(card, "").split()[1 : 1 + len(block.columns)]
        if not cells:
            problems.append(Problem(argument, card, "has a column and no row", "Copy the whole matrix"))
        elif len(cells) <= max(at):
            rule = f"has {len(cells)} cells for {max(at) + 1} columns"
            problems.append(Problem(argument, card, rule, "Copy the whole matrix"))
        elif cells[at[i]] != "X":
            rule = f"meets itself in a cell {cells[at[i]]}, not X"
            problems.append(Problem(argument, card, rule, "Copy the whole matrix, header and all"))
        else:
            found.append(tuple(cells[j] for j in at))
    if problems:
        raise InvalidArgument("Topology.from_text()", problems)
    return tuple(found)


def _is_peer_table(cells: Labels) -> bool:
    return len(cells) > 1 and all(
        c in PEER_CODES for i, row in enumerate(cells) for j, c in enumerate(row) if i != j
    )


def _codes(cells: Labels) -> Peers:
    return tuple(
        tuple(i == j or PEER_CODES[code] for j, code in enumerate(row)) for i, row in enumerate(cells)
    )


def _labels(cells: Labels) -> Labels:
    """The kinds of all links, checked: known, and the same in both directions."""
    kinds = tuple(tuple(OLD_LABELS.get(cell, cell) for cell in row) for row in cells)
    known = "One of NV1, NV2, ..., PIX, PXB, PHB, NODE, SYS"
    problems = []
    for i, row in enumerate(kinds):
        for j, kind in enumerate(row):
            if i == j:
                continue
            if not speeds.level(kind) or kind == "X":
                problems.append(Problem("text", cells[i][j], f"is no link, in row {i} and column {j}", known))
            elif i < j and kind != kinds[j][i]:
                rule = f"row {i} and column {j}, but {kinds[j][i]} the other way round"
                problems.append(Problem("text", kind, rule, "Copy the whole matrix"))
    if problems:
        raise InvalidArgument("Topology.from_text()", problems)
    return kinds


def _numa(block: _Block, card: str) -> int | None:
    """The one NUMA node of a card, if the text says so.

    Affinities may be empty. Tabs then still count the columns; where the text has blanks instead,
    a value belongs to the heading above it.
    """
    names = [name for name, _ in block.affinities]
    if "NUMA Affinity" not in names:
        return None
    at, row = names.index("NUMA Affinity"), block.rows[card]
    tabbed = row.strip("\n").lstrip(" ").split("\t")
    values = row.split()[1 + len(block.columns) :]
    if len(tabbed) > 1 + len(block.columns) + at:
        value = tabbed[1 + len(block.columns) + at].strip()
    elif len(values) == len(names):
        value = values[at]
    else:
        start = block.affinities[at][1]
        end = block.affinities[at + 1][1] if at + 1 < len(names) else len(row)
        value = row[start:end].strip()
    return int(value) if re.fullmatch(r"[0-9]{1,4}", value) else None


def _logged_peers(lines: list[str]) -> Peers | None:
    """Peer access between all devices that a log of TensorFlow names; None if it names no pair."""
    refused = [(int(m[1] or m[3]), int(m[2] or m[4])) for line in lines for m in _REFUSED.finditer(line)]
    rows = {int(m[1]): m[2].split() for line in lines if (m := _LOG_ROW.search(line))}
    if not refused and not rows:
        return None
    named = [*(d for pair in refused for d in pair), *rows, *(len(row) - 1 for row in rows.values())]
    for line in lines:
        named += [int(m[1]) for m in _LOG_DEVICE.finditer(line)] + [
            int(m[1]) for m in _LOG_FOUND.finditer(line)
        ]
        named += [int(d) for m in _LOG_VISIBLE.finditer(line) for d in re.findall("[0-9]{1,6}", m[1])]
    count = max(named) + 1
    if count > MOST:
        raise _refuse(
            "text",
            f"device {count - 1}",
            f"is more than {MOST} devices",
            "Copy the lines of the log as they are",
        )
    no = {*refused, *((i, j) for i, row in rows.items() for j, cell in enumerate(row) if cell == "N")}
    return tuple(tuple(i == j or (i, j) not in no for j in range(count)) for i in range(count))


def _from_log(text: str, lines: list[str], peers: Peers | None) -> Matrix:
    """The log does not say how cards are joined: the slowest kind that fits the peer access it tells."""
    logged = _logged_peers(lines)
    if logged is None:
        rule, fix = "holds no matrix of links", "Copy all of what `nvidia-smi topo -m` prints"
        raise _refuse("text", text, rule, fix)
    n = range(len(logged))
    names = {int(m[1]): m[2].strip() for line in lines for m in _LOG_DEVICE.finditer(line)}
    kinds = tuple(
        tuple("X" if i == j else "PHB" if logged[i][j] or logged[j][i] else "SYS" for j in n) for i in n
    )
    return Matrix(
        tuple(names.get(i, f"device {i}") for i in n), kinds, peers or logged, (None,) * len(logged)
    )


def _refuse(argument: str, value: object, rule: str, fix: str) -> InvalidArgument:
    shown = value if not isinstance(value, str) or len(value) < 60 else value[:60] + "..."
    return InvalidArgument("Topology.from_text()", [Problem(argument, shown, rule, fix)])
