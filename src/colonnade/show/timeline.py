"""`cn.draw`: a timeline as a picture, a line per device and a box per task."""

from pathlib import Path

from colonnade.describe.device_order import in_order
from colonnade.describe.pictures.colours import KIND_COLOURS, OTHER
from colonnade.describe.timeline import Timeline, label
from colonnade.errors import ColonnadeError

# Boxes narrower than this part of the picture get no label.
_NARROW = 0.015


def draw(timeline: Timeline, path: str | Path) -> Path:
    """Draw a timeline into a file; its suffix (.png, .svg, .pdf) says as what. Needs Matplotlib.

    Args:
        timeline: what `Pipeline.timeline()` returned, or any other.
        path: where to write.

    Returns:
        The path.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as missing:
        raise ColonnadeError("draw() needs Matplotlib: pip install 'colonnade[bench]'") from missing
    devices = in_order(timeline.devices)
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(devices)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for event in timeline.events:
        line, width = devices.index(event.device), event.seconds * 1e3
        face = KIND_COLOURS.get(event.kind, OTHER)
        axes.barh(line, width, left=event.start * 1e3, height=0.8, color=face, edgecolor="white")
        if event.seconds > _NARROW * timeline.span:
            middle = (event.start + event.end) / 2 * 1e3
            axes.text(middle, line, label(event), ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(devices)), devices)
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(f"{timeline.slots:.1f} slots, {timeline.overlap:.0%} of the work overlaps", fontsize=10)
    figure.savefig(path, dpi=120)
    return Path(path)
