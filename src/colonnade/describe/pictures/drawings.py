"""Small pictures for notebooks, as SVG: a curve, a timeline."""

from collections.abc import Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from colonnade.describe.pictures.colours import KIND_COLOURS, OTHER, line_colour
from colonnade.describe.waits import HOST

if TYPE_CHECKING:
    from colonnade.describe.timeline import Event

# A picture of more boxes would make a notebook slow; the shortest are left out.
MOST_BOXES = 1500


def sparkline(values: Sequence[float], *, wide: int = 420, high: int = 70, name: str = "curve") -> str:
    """A curve without axes: of every pixel the lowest and the highest value that is finite."""
    known = [value for value in values if isfinite(value)]
    if not known:
        return ""
    low, high_value = min(known), max(known)
    span = (high_value - low) or 1.0
    points = []
    columns = min(wide, len(values))
    for i in range(columns):
        here = [
            v for v in values[i * len(values) // columns : (i + 1) * len(values) // columns] if isfinite(v)
        ]
        for value in dict.fromkeys((max(here), min(here))) if here else ():
            x = 2 + (wide - 4) * (i / max(1, columns - 1))
            points.append(f"{x:.1f},{2 + (high - 4) * (1 - (value - low) / span):.1f}")
    words = f"{name}: {values[0]:.4g} to {values[-1]:.4g}, lowest {low:.4g}"
    return (
        f'<svg class="colonnade" viewBox="0 0 {wide} {high}" role="img" aria-label="{escape(words)}" '
        f'style="max-width:{wide}px;width:100%;height:auto;display:block"><title>{escape(words)}</title>'
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{line_colour(0)}" stroke-width="1.6" '
        f'stroke-linejoin="round"/></svg>'
    )


def boxes(events: Sequence["Event"], devices: Sequence[str], span: float) -> str:
    """A line per device and a box per event."""
    wide, row, left = 760, 26, 64
    drawn = sorted(events, key=lambda event: -event.seconds)[:MOST_BOXES]
    order = [*(device for device in devices if device != HOST), *(d for d in devices if d == HOST)]
    parts = [
        f'<text x="{left - 8}" y="{row * i + 17}" text-anchor="end" font-size="12" fill="currentColor">'
        f"{escape(device)}</text>"
        for i, device in enumerate(order)
    ]
    scale = (wide - left) / span if span else 0.0
    for event in sorted(drawn, key=lambda event: event.start):
        if event.kind == "waiting":
            continue
        words = f"{event.kind}, {event.seconds * 1e3:.3g} ms"
        words += "" if event.step is None else f", step {event.step}"
        parts.append(
            f'<rect x="{left + event.start * scale:.2f}" y="{row * order.index(event.device) + 3}" '
            f'width="{max(0.4, event.seconds * scale):.2f}" height="{row - 6}" '
            f'fill="{KIND_COLOURS.get(event.kind, OTHER)}"><title>{escape(words)}</title></rect>'
        )
    high = row * len(order) + 20
    parts.append(
        f'<text x="{wide}" y="{high - 4}" text-anchor="end" font-size="11" fill="currentColor" '
        f'fill-opacity=".7">{span * 1e3:.4g} ms</text>'
    )
    return (
        f'<svg class="colonnade" viewBox="0 0 {wide} {high}" role="img" aria-label="timeline" '
        f'style="max-width:{wide}px;width:100%;height:auto;display:block">{"".join(parts)}</svg>'
    )
