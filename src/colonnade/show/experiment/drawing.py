"""Draws Matplotlib figures as SVG that reads well on light and on dark pages."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Stand-ins that are replaced in the SVG by the page's own colours. Where a drawing stands alone, the
# greys after them apply, which can be read on white and on black.
INK, LINE, GROUND = "#123451", "#123452", "#123453"
_PAGE = {
    INK: "var(--ink, #7c8290)",
    LINE: "var(--line, #8a8f9a55)",
    GROUND: "var(--ground, #8a8f9a)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # real text, which pages can set in their own font
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.transparent": True,
}


@contextmanager
def style(name: str) -> Iterator[None]:
    """While a drawing is made and saved; the name keeps apart what two drawings of a page refer to."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": name}):
        yield


def svg(figure: Figure) -> str:
    """The drawing as an element of a page, as wide as there is room; the same figure gives the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    # A hundredth of a point is finer than any screen, and a third of the size.
    text = re.sub(r"(\.\d\d)\d+", r"\1", text[text.index("<svg") :])
    for stand_in, colour in _PAGE.items():
        text = text.replace(stand_in, colour)
    return text.replace("'DejaVu Sans', 'Bitstream Vera Sans'", "system-ui, 'DejaVu Sans'")


def legend(figure: Figure, axes: Axes, *, columns: int) -> None:
    """One legend above all panels, with the lines of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, handlelength=2.2, columnspacing=1.6
    )
