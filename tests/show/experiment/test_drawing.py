"""Drawings on light and dark pages: the colours are the page's, and the same drawing is the same text."""

from xml.etree import ElementTree

from matplotlib.figure import Figure

from colonnade.show.experiment.drawing import GROUND, INK, LINE, legend, style, svg


def drawn(name="one"):
    with style(name):
        figure = Figure(figsize=(3, 2))
        left, right = figure.subplots(1, 2)
        for axes in (left, right):
            axes.plot([0, 1], [0, 1 / 3], label="line", color=INK)
            axes.axhline(0.5, color=GROUND)
        left.set_title("what there is to see")
        legend(figure, left, columns=1)
        return svg(figure)


def test_text_and_axes_take_the_colours_of_the_page():
    text = drawn()
    assert not any(stand_in in text for stand_in in (INK, LINE, GROUND))
    assert all(f"var(--{name}, " in text for name in ("ink", "line", "ground"))


def test_it_is_one_element_with_real_text_and_one_legend_for_all_panels():
    text = drawn()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "what there is to see" in text
    assert text.count(">line<") == 1


def test_the_same_drawing_is_the_same_text_and_another_name_keeps_parts_apart():
    assert drawn() == drawn()

    def clips(text):
        return {e.get("id") for e in ElementTree.fromstring(text).iter() if "clipPath" in e.tag}

    assert clips(drawn())
    assert clips(drawn()).isdisjoint(clips(drawn("two")))
