"""Small pictures."""

from xml.etree import ElementTree

from colonnade.describe.pictures import drawings
from colonnade.describe.pictures.drawings import boxes, sparkline
from colonnade.describe.timeline import Event


def parsed(text):
    return ElementTree.fromstring(text)


def heights(text):
    line = next(parsed(text).iter("polyline")).get("points")
    return [float(point.split(",")[1]) for point in line.split()]


def test_a_curve_goes_from_top_to_bottom():
    found = heights(sparkline([1.0, 0.5, 0.0], high=70))
    assert found == [2.0, 35.0, 68.0]
    assert parsed(sparkline([2.0, 1.0])).get("aria-label") == "curve: 2 to 1, lowest 1"


def test_a_spike_of_a_long_curve_is_drawn():
    values = [0.0] * 100_000
    values[70_001] = 9.0
    found = heights(sparkline(values))
    assert min(found) == 2.0
    assert len(found) < 2000


def test_what_is_not_finite_is_left_out():
    assert sparkline([]) == ""
    assert sparkline([float("nan")]) == ""
    assert len(heights(sparkline([1.0, float("nan"), float("inf"), 2.0]))) == 2


def test_boxes_of_a_timeline(monkeypatch):
    events = [
        Event("CPU:0", 0, 3, "forward", step=4),
        Event("<b>", 1, 2, "<i>"),
        Event("CPU:0", 3, 4, "waiting"),
    ]
    picture = parsed(boxes(events, ["CPU:0", "<b>"], 4.0))
    rects = list(picture.iter("rect"))
    assert [rect[0].text for rect in rects] == ["forward, 3e+03 ms, step 4", "<i>, 1e+03 ms"]
    assert float(rects[0].get("width")) == 3 * float(rects[1].get("width"))
    assert [text.text for text in picture.iter("text")] == ["CPU:0", "<b>", "4000 ms"]
    monkeypatch.setattr(drawings, "MOST_BOXES", 1)
    assert len(list(parsed(boxes(events, ["CPU:0", "<b>"], 4.0)).iter("rect"))) == 1
