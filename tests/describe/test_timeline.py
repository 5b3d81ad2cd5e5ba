import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import colonnade as cn
from colonnade.describe.timeline import Event, Timeline
from colonnade.reason.schedules.schedule import SCHEDULES


def of_schedule(name, stages, micro_batches):
    """A schedule whose tasks all take a second, as it would have been measured."""
    return Timeline.of(
        Event(f"CPU:{k}", 100.0 + at, 101.0 + at, "backward" if backward else "forward", k, m)
        for at, slot in enumerate(SCHEDULES[name](stages, micro_batches))
        for k, m, backward in slot
    )


@given(st.integers(1, 5), st.integers(1, 7))
def test_slots_of_the_schedules(stages, m):
    """About m + s - 1 slots where stages overlap, m x s where they do not."""
    assert of_schedule("1f1b", stages, m).slots == pytest.approx(m + stages - 1)
    assert of_schedule("gpipe", stages, m).slots == pytest.approx(m + stages - 1)
    assert of_schedule("sequential", stages, m).slots == pytest.approx(m * stages)


def test_what_it_tells():
    timeline = of_schedule("gpipe", 2, 3)
    assert timeline.events[0].start == 0
    assert timeline.span == 8
    assert timeline.devices == ("CPU:0", "CPU:1")
    assert timeline.busy("CPU:0") == 6
    assert timeline.overlap == pytest.approx(4 / 12)
    assert of_schedule("sequential", 2, 3).overlap == 0
    assert (Timeline(()).span, Timeline(()).slots, Timeline(()).overlap) == (0, 0, 0)


def test_json_both_ways():
    timeline = of_schedule("1f1b", 3, 4)
    assert Timeline.from_json(timeline.to_json()) == timeline
    for wrong in ("[]", "{}", '{"events": [3]}', '{"events": [{"device": "CPU:0"}]}'):
        with pytest.raises(cn.InvalidArgument, match=r"what to_json|Write it with to_json"):
            Timeline.from_json(wrong)


WRONG = {
    "device": [None, 3, ["CPU:0"], {}],
    "start": [None, "0", True, [], float("nan"), float("-inf"), 10**400, -(10**400)],
    "end": [None, "1", False, {}, float("inf"), 10**400, 0.25],
    "kind": [None, 1.5, ["forward"]],
    "stage": ["0", 1.5, True, -1, 10**400, []],
    "micro_batch": ["0", [1], 10**400],
    "replica": [None, "0", 0.5, {}],
    "bytes": [None, "1", -1, [], float("nan"), 10**400],
    "step": ["3", 3.0, [3], {}, 10**400],
    "bucket": ["a", [], 1.5],
    "link": [3, ["CPU:0", "CPU:1"], {}],
    "cause": [3, ["update"], True],
    "colour": ["red"],
}


@pytest.mark.parametrize("name", WRONG)
def test_fields_of_the_wrong_type_are_named(name):
    for value in WRONG[name]:
        event = {"device": "CPU:0", "start": 0.5, "end": 1.0, "kind": "forward", name: value}
        with pytest.raises(cn.InvalidArgument, match=rf"events\[1\]\.{name}="):
            Timeline.from_json(json.dumps({"events": [asdict(Event("CPU:0", 0.0, 1.0, "input")), event]}))


def test_what_an_event_may_be():
    """Every field is judged, and moved bytes may be a part of a whole: of a simulated ring."""
    full = {"stage": 1, "micro_batch": 2, "replica": 1, "bytes": 0.5, "step": 3, "bucket": 0}
    event = Event("CPU:0", -1.0, 0, "<forward>", **full, link="a -> b", cause="update")
    assert set(asdict(event)) == set(WRONG) - {"colour"}
    assert Timeline.from_json(json.dumps({"events": [asdict(event)]})).events == (event,)


def test_a_trace_for_perfetto():
    trace = json.loads(of_schedule("1f1b", 2, 2).to_chrome())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert names == {0: "CPU:0", 1: "CPU:1"}
    tasks = [event for event in trace if event["ph"] == "X"]
    assert [(e["tid"], e["name"], e["ts"], e["dur"]) for e in tasks[:2]] == [
        (0, "F0", 0, 1e6),
        (0, "F1", 1e6, 1e6),
    ]
    assert len(tasks) == 8


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path, suffix):
    path = cn.draw(of_schedule("1f1b", 3, 4), tmp_path / f"timeline.{suffix}")
    text = path.read_bytes()
    assert len(text) > 5000
    if suffix == "svg":
        assert b"CPU:2" in text or text.count(b"<path") > 24  # a box per task at least


def test_devices_are_in_the_order_of_their_numbers():
    events = [Event(f"CPU:{i}", 0.0, 1.0, "forward") for i in (10, 2, 0)]
    lines = json.loads(Timeline.of(events).to_chrome())["traceEvents"][:3]
    assert [line["args"]["name"] for line in lines] == ["CPU:0", "CPU:2", "CPU:10"]


def test_in_a_notebook():
    timeline = Timeline.of(
        [Event("<d>", 0.0, 1.0, "forward", step=1), Event("b", 0.0, 2.0, "backward", step=1)]
    )
    html = timeline._repr_html_()
    assert "<script" not in html
    assert "&lt;d&gt;" in html
    assert "One step in 2 s" in html
    assert len(repr(timeline)) < 60
    assert html.count("<rect") == 2
    assert "Nothing was recorded" in Timeline.of([])._repr_html_()


def test_a_notebook_shows_a_part_of_a_large_timeline():
    """And says how much it leaves out."""
    events = [Event(f"CPU:{i}", float(j), j + 1.0, "forward") for i in range(256) for j in range(60)]
    html = Timeline.of(events)._repr_html_()
    assert "224 more devices are not drawn." in html
    assert "420 shorter events are not drawn." in html  # 32 devices have 1920, and 1500 are drawn
    assert len(html) < 400_000
    assert "not drawn" not in Timeline.of(events[:120])._repr_html_()
