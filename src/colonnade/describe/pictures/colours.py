"""Colours that mean the same in every picture, and can be told apart on light and on dark ground."""

# Of what a device does.
KIND_COLOURS = {
    "input": "#17a2a2",
    "forward": "#4a7dd6",
    "backward": "#e08a2e",
    "compute": "#6f7fd0",
    "reduction": "#a259c4",
    "update": "#3c9a55",
    "checkpoint": "#c2504a",
    "waiting": "#8b93a355",
}
OTHER = "#8b93a3"
# Of lines that stand for runs, devices or metrics, in this order.
LINES = (
    "#4a7dd6",
    "#e08a2e",
    "#3c9a55",
    "#a259c4",
    "#c2504a",
    "#17a2a2",
    "#b5892b",
    "#d2609e",
    "#6b7280",
    "#7a9a2e",
)


def line_colour(i: int) -> str:
    """The colour of the i-th line; they come round again.

    >>> line_colour(0) == line_colour(len(LINES))
    True
    """
    return LINES[i % len(LINES)]
