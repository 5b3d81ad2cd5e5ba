"""Colours of pictures."""

import re

from colonnade.describe.breakdown import KINDS
from colonnade.describe.pictures.colours import KIND_COLOURS, LINES


def contrast(one, other):
    """As WCAG counts it."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_every_kind_has_a_colour_of_its_own():
    assert tuple(KIND_COLOURS) == KINDS
    assert len(set(KIND_COLOURS.values())) == len(KINDS)
    assert all(re.fullmatch(r"#[0-9a-f]{6,8}", colour) for colour in (*KIND_COLOURS.values(), *LINES))


def test_they_stand_out_from_light_and_dark_ground():
    for colour in (*LINES, *(c for kind, c in KIND_COLOURS.items() if kind != "waiting")):
        assert contrast(colour, "#ffffff") > 2.4, colour
        assert contrast(colour, "#12151a") > 3.0, colour
