"""Charts as data: what is drawn, and that nothing of a user's becomes a tag."""

import json
import math

import pytest
from runs import START, facts, run_folder, timeline

from colonnade.describe.run_folder import read_run
from colonnade.describe.timeline import Event, Timeline
from colonnade.show.report import charts


@pytest.fixture
def run(tmp_path):
    return read_run(run_folder(tmp_path / "a"))


def test_the_loss_has_a_band_and_its_replicas(run):
    low, high, loss, *replicas = charts.metric([run], "loss")["traces"]
    assert loss["name"] == "loss"
    assert loss["x"] == list(range(1, 101))
    assert loss["times"][:2] == pytest.approx([0.01, 0.02], rel=1e-4)
    assert high["fill"] == "tonexty"
    assert all(a <= b for a, b in zip(low["y"], high["y"], strict=True))
    assert [(trace["name"], trace["visible"]) for trace in replicas] == [
        ("on CPU:0", "legendonly"),
        ("on CPU:1", "legendonly"),
    ]


def test_runs_are_compared_by_name(tmp_path, run):
    other = read_run(run_folder(tmp_path / "<b>", steps=50))
    names = [trace["name"] for trace in charts.metric([run, other], "accuracy")["traces"]]
    assert names == ["a", "&lt;b&gt;"]
    assert [trace["name"] for trace in charts.speed([run, other])["traces"]] == ["a", "&lt;b&gt;"]


def test_speed_marks_saves_and_skipped_updates(run):
    _, saves, skipped = charts.speed([run])["traces"]
    assert (saves["x"], saves["text"]) == ([50], ["saved; steps waited 4 ms"])
    assert (skipped["name"], skipped["x"]) == ("skipped updates", [51])


def test_steps_of_long_runs_and_their_times_are_exact(tmp_path):
    folder = run_folder(tmp_path / "a", steps=1)
    steps = range(12_345_600, 12_345_700)
    lines = [{"step": i, "time": START + 1_000_000 + i / 1000, "loss": 1.0, "loss_max": 2.0} for i in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "progress.jsonl").write_text(json.dumps({"event": "begin", "time": START}))
    for trace in charts.metric([read_run(folder)], "loss")["traces"]:
        assert trace["x"] == list(steps)
        assert trace["times"] == pytest.approx([1_000_000 + i / 1000 for i in steps], abs=6e-4)
        assert len(set(trace["times"])) == 100


def test_time_between_sessions_is_not_on_the_axis(tmp_path):
    """For curves, bands and marks alike."""
    folder = run_folder(tmp_path / "a", steps=1)
    times = [10.0, 20.0, 3610.0, 3620.0]
    lines = [{"step": i, "time": START + t, "loss": 1.0, "loss_max": 2.0} for i, t in enumerate(times)]
    lines = [{**line, "examples_per_second": 5.0} for line in lines]
    events = [("begin", 0, 0), ("save", 20, 1), ("begin", 3600, 1), ("skipped", 3610, 2), ("end", 3620, 3)]
    noted = [{"event": event, "time": START + time, "step": step} for event, time, step in events]
    for name, values in (("metrics", lines), ("progress", noted)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    run = read_run(folder)
    for trace in charts.metric([run], "loss")["traces"]:
        assert trace["times"] == [10.0, 20.0, 30.0, 40.0]
    speed, saves, skipped = charts.speed([run])["traces"]
    assert (speed["times"], saves["times"], skipped["times"]) == ([10.0, 20.0, 30.0, 40.0], [20.0], [30.0])


def test_names_are_spelled_so_that_nothing_is_filled_in():
    assert charts.spelled("""it's "%{y}" & <b>""") == """it's "%&#123;y}" &amp; &lt;b&gt;"""


def test_what_is_not_finite_is_a_gap():
    """Also what becomes so by reckoning: there is no word for it in JSON."""
    assert [charts.rounded(value) for value in (None, math.inf, math.nan, 1.23456789)] == [
        *(None, None, None),
        1.23457,
    ]


def test_boxes_of_a_long_timeline_touch_each_other():
    """Rounded to six digits, those of a profile of minutes would be a millisecond apart."""
    events = [Event("CPU:0", i / 1e4, (i + 1) / 1e4, "forward") for i in range(1_000_000, 1_000_100)]
    events.append(Event("CPU:0", 0.0, 1e-3, "forward"))
    chart, _ = charts.timeline(Timeline.of(events), "measured")
    (trace,) = chart["traces"]
    ends = [begin + wide for begin, wide in zip(trace["base"], trace["x"], strict=True)]
    assert ends[1:-1] == pytest.approx(trace["base"][2:], abs=1e-3)


def test_a_point_between_gaps_is_drawn(tmp_path):
    run = read_run(run_folder(tmp_path / "a", steps=5))
    for values, mode in (
        ([None, 1.0, None, 2.0, 3.0], "lines+markers"),
        ([None, None, 1.0, 2.0, 3.0], "lines"),
    ):
        assert charts.curve(run, values, "rare", "#000000")["mode"] == mode


def test_a_spike_survives(tmp_path):
    run = read_run(run_folder(tmp_path / "a", steps=20_000, spike=12_345))
    *_, loss, _, _ = charts.metric([run], "loss")["traces"]
    assert len(loss["x"]) <= 2000
    assert loss["x"][loss["y"].index(max(loss["y"]))] == 12_345


def test_a_timeline_draws_every_event_or_says_how_many_not(monkeypatch):
    chart, undrawn = charts.timeline(timeline(), "measured")
    assert undrawn == 0
    assert [trace["name"] for trace in chart["traces"]] == [
        "input",
        "forward",
        "backward",
        "reduction",
        "update",
    ]
    assert sum(len(trace["x"]) for trace in chart["traces"]) == len(timeline().events)
    assert chart["traces"][3]["text"][0] == "step 0, bucket 0, CPU:1 -&gt; CPU:0, 1.0 MiB<br>1 ms"
    assert chart["layout"]["yaxis"]["categoryarray"] == ["host", "CPU:1", "CPU:0"]
    monkeypatch.setattr(charts, "MOST_EVENTS", 5)
    chart, undrawn = charts.timeline(timeline(), "measured")
    assert sum(len(trace["x"]) for trace in chart["traces"]) == 5
    assert undrawn == len(timeline().events) - 5


def test_stages_and_unknown_kinds():
    events = [Event("<i>", 0, 1, "<b>", stage=2, micro_batch=3)]
    chart, _ = charts.timeline(Timeline.of(events), "measured")
    assert chart["traces"][0]["name"] == "&lt;b&gt;"
    assert chart["traces"][0]["y"] == ["&lt;i&gt;"]
    assert chart["traces"][0]["text"] == ["stage 2, micro-batch 3<br>1000 ms"]


def test_memory_against_its_limit(run):
    chart = charts.memory(run)
    assert [trace["name"] for trace in chart["traces"]] == [
        "parameters (estimate)",
        "slots (estimate)",
        "gradients (estimate)",
        "activations (estimate)",
        "held at most",
        "limit",
    ]
    assert chart["traces"][3]["x"] == [16.0, 16.0]
    assert chart["traces"][4]["x"] == [16.0, None]
    assert chart["traces"][5]["x"] == [32.0, None]
    assert chart["layout"]["xaxis"]["title"]["text"] == "MiB"


def test_units_of_memory(tmp_path):
    for total, unit in ((2**31, "GiB"), (2**12, "KiB")):
        memory = {"estimate": {"CPU:0": {"parameters": total, "total": total}}, "limits": {}}
        run = read_run(run_folder(tmp_path / unit, memory=memory))
        (run.path / "progress.jsonl").write_text("")
        assert charts.memory(read_run(run.path))["layout"]["xaxis"]["title"]["text"] == unit


def test_shares_and_staleness(tmp_path):
    folder = run_folder(tmp_path / "a", steps=1)
    more = [
        {
            "step": 2,
            "shares": {"CPU:0": 0.25, "CPU:1": 0.75},
            "staleness": {"0": 5, "3": 7, "x": 1, "\u00b2": 1, "9" * 5000: 1},
        }
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in more))
    run = read_run(folder)
    assert [trace["y"] for trace in charts.shares(run)["traces"]] == [[0.25], [0.75]]
    (bars,) = charts.staleness(run)["traces"]
    assert (bars["x"], bars["y"]) == ([0, 3], [5.0, 7.0])


def test_shares_of_a_long_run_are_stacked_at_the_same_steps(tmp_path):
    """Each thinned by itself, they would have points at different steps, and sums of anything."""
    folder = run_folder(tmp_path / "a", steps=1)
    lines = []
    for i in range(5000):
        first = 0.3 + 0.1 * math.sin(i * 1.7)
        second = 0.9 - first if i == 3333 else 0.2 + 0.05 * math.cos(i * 0.9)
        parts = {"CPU:0": first, "CPU:1": second, "CPU:2": 1 - first - second}
        lines.append({"step": i + 1, "time": START + i, "shares": parts})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    traces = charts.shares(read_run(folder))["traces"]
    assert len(traces[0]["x"]) <= 2000
    assert all(trace["x"] == traces[0]["x"] and trace["times"] == traces[0]["times"] for trace in traces)
    assert 3334 in traces[0]["x"]  # a spike of one of them
    sums = [sum(parts) for parts in zip(*(trace["y"] for trace in traces), strict=True)]
    assert sums == pytest.approx([1.0] * len(sums), abs=1e-5)


@pytest.mark.parametrize("broken", [None, 7, "x", [1], {"estimate": 3}, {"estimate": {"CPU:0": 4}}])
def test_files_may_hold_anything(tmp_path, broken):
    folder = run_folder(tmp_path / "a", **{key: broken for key in facts() if key not in ("format",)})
    lines = [{"step": 1, "loss": 1.0, "replicas": broken, "shares": broken, "staleness": broken, "m": broken}]
    (folder / "metrics.jsonl").write_text(json.dumps(lines[0]))
    (folder / "progress.jsonl").write_text(json.dumps({"event": "end", "memory": broken, "step": broken}))
    run = read_run(folder)
    assert len(charts.metric([run], "loss")["traces"]) >= 1
    json.dumps([charts.memory(run), charts.shares(run), charts.staleness(run), charts.speed([run])])
