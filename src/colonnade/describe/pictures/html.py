"""Small pieces of HTML for notebooks and pages: tables and pictures that follow the colours around them.

Everything that comes from a user is escaped. Colours are those of the page (`currentColor`), so that a
piece can be read in light and in dark notebooks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from colonnade.describe.pictures.colours import KIND_COLOURS, OTHER

_NODE = "#4b5468"  # under white letters, on light and on dark ground
# Links of a picture that have their words beside them; of more, one tells when it is pointed at.
_LABELLED = 12
# Rows of a table; a notebook with tens of thousands of them cannot be read, nor scrolled.
MOST_ROWS = 200
_CELL = "padding:.2em .8em;border-bottom:1px solid #8883;text-align:"


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", most: int = MOST_ROWS
) -> str:
    """A table; the first column is text, and others are numbers. Of many rows the first are shown.

    >>> "&lt;b&gt;" in table(["a"], [["<b>"]])
    True
    """
    sides = ["left", *["right"] * (len(head) - 1)]

    def line(tag: str, cells: Sequence[object]) -> str:
        inner = "".join(
            f'<{tag} style="{_CELL}{side}">{escape(str(cell))}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    known = list(rows)
    body = "".join(line("td", row) for row in known[:most])
    if len(known) > most:
        body += line("td", [f"and {len(known) - most:,} more", *[""] * (len(head) - 1)])
    named = f'<div style="font-weight:600;margin:.3em 0">{escape(title)}</div>' if title else ""
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;color:inherit;background:none"
    return (
        f'<div class="colonnade" style="overflow-x:auto">{named}<table style="{style}">'
        f"<thead>{line('th', head)}</thead><tbody>{body}</tbody></table></div>"
    )


def paragraphs(sentences: Iterable[str]) -> str:
    """Sentences, one under the other."""
    return "".join(f'<div style="margin:.3em 0">{escape(sentence)}</div>' for sentence in sentences)


def size(num_bytes: float) -> str:
    """Bytes as people say them.

    >>> size(0), size(1500), size(3 * 2**20)
    ('0 B', '1.5 KiB', '3.0 MiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(num_bytes, 1024)), len(units) - 1) if num_bytes >= 1 else 0
    return f"{num_bytes:.0f} B" if power == 0 else f"{num_bytes / 1024**power:.1f} {units[power]}"


def bars(rows: Mapping[str, Mapping[str, float]], total: float, more: Iterable[str] = ()) -> str:
    """A bar per row, cut into coloured parts of a total, with a legend under all of them, and of `more`."""
    kinds = dict.fromkeys([*more, *(kind for parts in rows.values() for kind in parts)])
    lines = []
    for name, parts in rows.items():
        pieces = "".join(
            f'<span title="{escape(f"{kind}: {amount / total:.1%}")}" style="width:{amount / total:.4%};'
            f'background:{KIND_COLOURS.get(kind, OTHER)}"></span>'
            for kind, amount in parts.items()
            if total > 0
        )
        lines.append(
            f'<div style="display:flex;align-items:center;margin:.25em 0"><span style="flex:0 0 6em">'
            f'{escape(name)}</span><span style="display:flex;flex:1;height:1.2em;max-width:40em;'
            f'border-radius:.25em;overflow:hidden">{pieces}</span></div>'
        )
    return f'<div class="colonnade">{"".join(lines)}{legend(kinds)}</div>'


def legend(kinds: Iterable[str]) -> str:
    """What the colours of kinds mean."""
    marks = "".join(
        f'<span style="margin-right:1.2em;white-space:nowrap"><span style="display:inline-block;width:.8em;'
        f'height:.8em;border-radius:.2em;margin-right:.4em;background:{KIND_COLOURS.get(kind, OTHER)}">'
        f"</span>{escape(kind)}</span>"
        for kind in kinds
    )
    return f'<div style="margin:.4em 0;font-size:.9em">{marks}</div>'


def network(
    names: Sequence[str],
    links: Mapping[tuple[int, int], tuple[str, float]],
    *,
    labelled: bool = False,
    kinds: Mapping[tuple[int, int], str] | None = None,
) -> str:
    """Devices in a ring and the links between them, thicker where more goes over.

    Args:
        names: of the devices.
        links: by a pair of positions, the words for what goes from the first to the second, and how
            much that is; both directions of a pair are drawn as one line.
        labelled: whether the words stand on the links too, unless there are many of them.
        kinds: what links are like, by a pair of positions; those over which nothing goes are thin.
    """
    most = max((amount for _, amount in links.values()), default=0.0)
    # So large that the boxes of many devices do not touch each other.
    radius = max(120.0, 12.0 * len(names))
    wide, high = 2.7 * radius + 116, 2 * radius + 90
    places = [
        (
            wide / 2 + 1.35 * radius * math.cos(2 * math.pi * i / len(names) - math.pi / 2),
            high / 2 + radius * math.sin(2 * math.pi * i / len(names) - math.pi / 2),
        )
        for i in range(len(names))
    ]
    if len(names) == 2:
        high = 110.0
        places = [(wide * 0.22, high / 2), (wide * 0.78, high / 2)]
    kinds = kinds or {}
    drawn, labels = [], []
    for i, j in sorted({(min(pair), max(pair)) for pair in kinds if pair[0] != pair[1]}):
        if (i, j) not in links and (j, i) not in links:
            drawn.append(_line(places[i], places[j], 1.0, "currentColor", 0.25, _ways(names, kinds, (i, j))))
    pairs = sorted({(min(pair), max(pair)) for pair in links if pair[0] != pair[1]})
    for i, j in pairs:
        both = [(pair, links[pair]) for pair in ((i, j), (j, i)) if pair in links]
        amount = max(value for _, (_, value) in both)
        words = "\n".join(f"{names[a]} → {names[b]}: {said}" for (a, b), (said, _) in both)
        if like := _ways(names, kinds, (i, j)):
            words += f"\n{like}"
        width = 1.2 + 6 * amount / most if most else 1.2
        (x1, y1), (x2, y2) = places[i], places[j]
        drawn.append(_line(places[i], places[j], width, KIND_COLOURS["reduction"], 0.65, words))
        if labelled and len(pairs) <= _LABELLED:
            ways = [f"→ {names[b]}: {said}" for (_, b), (said, _) in both]
            alike = len(both) == 2 and both[0][1] == both[1][1]
            shown = [f"{both[0][1][0]} each way"] if alike else ways
            around = "paint-order:stroke;stroke:var(--card,transparent);stroke-width:6px"
            for k, line in enumerate(shown):
                x, y = (x1 + x2) / 2, (y1 + y2) / 2 + 4 + 15 * (k - (len(shown) - 1) / 2)
                labels.append(
                    f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="middle" font-size="12" '
                    f'fill="currentColor" style="{around}">{escape(line)}</text>'
                )
    drawn += labels  # over all lines
    for (x, y), name in zip(places, names, strict=True):
        drawn.append(
            f'<g><rect x="{x - 36:.0f}" y="{y - 16:.0f}" width="72" height="32" rx="9" fill="{_NODE}"/>'
            f'<text x="{x:.0f}" y="{y + 4.5:.0f}" text-anchor="middle" font-size="13" '
            f'fill="#fff">{escape(name)}</text></g>'
        )
    style = f"max-width:{28 if len(names) <= 10 else 48}em;width:100%;height:auto"
    return (
        f'<svg class="colonnade" viewBox="0 0 {wide:.0f} {high:.0f}" role="img" '
        f'aria-label="devices and links" style="{style}">{"".join(drawn)}</svg>'
    )


def _line(
    start: tuple[float, float], end: tuple[float, float], wide: float, colour: str, opacity: float, words: str
) -> str:
    (x1, y1), (x2, y2) = start, end
    return (
        f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" stroke="{colour}" '
        f'stroke-opacity="{opacity:g}" stroke-width="{wide:.1f}" stroke-linecap="round">'
        f"<title>{escape(words)}</title></line>"
    )


def _ways(names: Sequence[str], kinds: Mapping[tuple[int, int], str], pair: tuple[int, int]) -> str:
    """What the link of a pair is like, in both directions."""
    i, j = pair
    there, back = kinds.get((i, j)), kinds.get((j, i))
    if there == back:
        return "" if there is None else f"{names[i]} ↔ {names[j]}: {there}"
    known = ((i, j, there), (j, i, back))
    return "\n".join(f"{names[a]} → {names[b]}: {like}" for a, b, like in known if like is not None)
