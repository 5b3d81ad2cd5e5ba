"""Reads the links between cards from what `nvidia-smi topo` prints, and from TensorFlow's log lines.

        A0   A1   mlx5_0  CPU Affinity  NUMA Affinity         a header: cards, adapters, affinities
  A0     X   PIX  PHB     0-7           0                     a row of a card: a cell for each
  A1    PIX   X   PHB     0-7           0                     of the first columns
  mlx5_0 PHB PHB   X                                          adapters are counted only

A card's column is one whose name is the first column's word with another number. So the reader
needs no knowledge of what a vendor calls a card. Several tables and a log are joined by those numbers.

Nothing is left out in silence: a table that is neither of links nor of peer access, that is damaged,
or that says something else than another one, is an error.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from string import ascii_letters

from colonnade.describe import speeds
from colonnade.errors import InvalidArgument, Problem

Labels = tuple[tuple[str, ...], ...]
# By the numbers of two cards: whether the first reaches the memory of the second.
Peers = dict[tuple[int, int], bool]

# Why a driver has no peer access: chipset, card, topology, not supported, disabled, unknown.
PEER_CODES = {"OK": True, "CNS": False, "GNS": False, "TNS": False, "NS": False, "DR": False, "U": False}
OLD_LABELS = {"SOC": "SYS"}  # what drivers before 2017 printed

MOST = 1024  # a log that names a higher device is not a log

# All that a terminal takes for a command (ECMA-48), and colours whose escape was lost on the way.
_CONTROL = re.compile(
    r"(?:\x1b\[|\^\[\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # titles, links
    r"|\x1b[ -/]*[0-~]|\[[0-9;]*[mK]|[\x00-\x08\x0e-\x1b\x7f]"
)
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
    peers: tuple[tuple[bool | None, ...], ...] | None
    numa: tuple[int | None, ...]
    adapters: int = 0  # to a network


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
    links, peers = _tables("text", lines)
    logged = _logged_peers("text", lines)
    where = "text"
    if p2p is not None:
        peers, where = _peers(p2p), "p2p"
    elif peers is None and logged is not None:
        peers = logged
    adapters = 0
    if links is not None:
        block, kinds = links
        adapters = len(block.columns) - len(block.cards)
        numbers = [_number(card) for card in block.cards]
        names, numa = tuple(block.cards), tuple(_numa(block, name) for name in block.cards)
    elif logged is not None:
        numbers = sorted({i for i, _ in logged})
        names, kinds, numa = _from_log(lines, logged)
    else:
        rule, fix = "holds no matrix of links", "Copy all of what `nvidia-smi topo -m` prints"
        raise _refuse("text", text, rule, fix)
    if peers is None:
        return Matrix(names, kinds, None, numa, adapters)
    cards = {i for i, _ in peers}
    # A log names the devices that a program used, which need not be all.
    if cards - set(numbers) or (peers is not logged and cards != set(numbers)):
        rule = f"tells peer access of cards {_listed(cards)}, and the links are for {_listed(numbers)}"
        raise _refuse(where, p2p or text, rule, "Take both from the same machine")
    reachable = tuple(tuple(peers.get((i, j)) for j in numbers) for i in numbers)
    return Matrix(names, kinds, reachable, numa, adapters)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _peers(text: str) -> Peers:
    lines = _lines("p2p", text)
    links, peers = _tables("p2p", lines)
    if peers is None and links is not None and len(links[1]) == 1:
        return {(_number(links[0].cards[0]),) * 2: True}  # of one card, both tables look alike
    known = peers or _logged_peers("p2p", lines)
    if known is None:
        rule, fix = "holds no matrix of peer access", "Copy all of what `nvidia-smi topo -p2p r` prints"
        raise _refuse("p2p", text, rule, fix)
    return known


def _tables(argument: str, lines: list[str]) -> tuple[tuple[_Block, Labels] | None, Peers | None]:
    """The matrix of links and the one of peer access, where a text has them."""
    links: tuple[_Block, Labels] | None = None
    peers: Peers | None = None
    problems: list[Problem] = []
    for block in _blocks(lines):
        try:
            cells = _cells(argument, block)
            if _is_peer_table(cells):
                codes = _codes(block, cells)
                if peers not in (None, codes):
                    problems.append(_contradiction(argument, "of peer access"))
                peers = codes
            else:
                kinds = _labels(argument, block, cells)
                if links is not None and (links[0].cards, links[1]) != (block.cards, kinds):
                    problems.append(_contradiction(argument, "of links"))
                links = links or (block, kinds)
        except InvalidArgument as error:
            problems.extend(error.problems)
    if problems:
        raise InvalidArgument("Topology.from_text()", problems)
    return links, peers


def _contradiction(argument: str, of: str) -> Problem:
    return Problem(argument, f"two matrices {of}", "say different things", "Keep the one that counts")


def _lines(argument: str, text: object) -> list[str]:
    if not isinstance(text, str):
        raise _refuse(argument, text, "must be text", "Read the file first: Path(...).read_text()")
    return [
        line.lstrip("> \u200b") if line.lstrip().startswith(">") else line
        for line in _CONTROL.sub("", text).splitlines()
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
    problems, labels = [], []
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
            labels.append(tuple(cells[j] for j in at))
    if problems:
        raise InvalidArgument("Topology.from_text()", problems)
    return tuple(labels)


def _is_peer_table(cells: Labels) -> bool:
    return len(cells) > 1 and all(
        c in PEER_CODES for i, row in enumerate(cells) for j, c in enumerate(row) if i != j
    )


def _codes(block: _Block, cells: Labels) -> Peers:
    return {
        (_number(a), _number(b)): a == b or PEER_CODES[cells[i][j]]
        for i, a in enumerate(block.cards)
        for j, b in enumerate(block.cards)
    }


def _number(card: str) -> int:
    return int(card.lstrip(ascii_letters))


def _labels(argument: str, block: _Block, cells: Labels) -> Labels:
    """The kinds of all links, checked: known, and the same in both directions."""
    kinds = tuple(tuple(OLD_LABELS.get(cell, cell) for cell in row) for row in cells)
    of_peers = any(cell in PEER_CODES for row in cells for cell in row)
    known = (
        f"One of {', '.join(PEER_CODES)}" if of_peers else "One of NV1, NV2, ..., PIX, PXB, PHB, NODE, SYS"
    )
    problems = []
    for i, row in enumerate(kinds):
        for j, kind in enumerate(row):
            at = f"in row {block.cards[i]} and column {block.cards[j]}"
            if i == j or (of_peers and kind in PEER_CODES):
                continue
            if of_peers:
                rule = f"is no word about peer access, {at}"
                problems.append(Problem(argument, cells[i][j], rule, known))
            elif not speeds.level(kind) or kind == "X":
                problems.append(Problem(argument, cells[i][j], f"is no link, {at}", known))
            elif i < j and kind != kinds[j][i]:
                rule = f"{at}, but {kinds[j][i]} the other way round"
                problems.append(Problem(argument, kind, rule, "Copy the whole matrix"))
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


def _logged_peers(argument: str, lines: list[str]) -> Peers | None:
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
    last = max(named)
    if last >= MOST:
        rule = f"is more than {MOST} devices"
        raise _refuse(argument, f"device {last}", rule, "Copy the lines of the log as they are")
    no = {*refused, *((i, j) for i, row in rows.items() for j, cell in enumerate(row) if cell == "N")}
    return {(i, j): i == j or (i, j) not in no for i in range(last + 1) for j in range(last + 1)}


def _from_log(lines: list[str], logged: Peers) -> tuple[tuple[str, ...], Labels, tuple[None, ...]]:
    """The log does not say how cards are joined: the slowest kind that fits the peer access it tells."""
    n = sorted({i for i, _ in logged})
    names = {int(m[1]): m[2].strip() for line in lines for m in _LOG_DEVICE.finditer(line)}
    kinds = tuple(
        tuple("X" if i == j else "PHB" if logged[i, j] or logged[j, i] else "SYS" for j in n) for i in n
    )
    return tuple(names.get(i, f"device {i}") for i in n), kinds, (None,) * len(n)


def _refuse(argument: str, value: object, rule: str, fix: str) -> InvalidArgument:
    shown = value if not isinstance(value, str) or len(value) < 60 else value[:60] + "..."
    return InvalidArgument("Topology.from_text()", [Problem(argument, shown, rule, fix)])
