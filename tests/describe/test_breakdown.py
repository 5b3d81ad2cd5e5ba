"""Where the time went, on timelines whose answer is known."""

import pytest

from colonnade.describe.breakdown import HOST, PROGRAM, Breakdown, merged, without
from colonnade.describe.timeline import Event, Timeline


def step(number, at, slow=1.0, **more):
    """A step of two devices: 4 s of work on the first, as long or longer on the second; then the update."""
    return [
        Event("CPU:0", at, at + 1, "forward", step=number),
        Event("CPU:0", at + 1, at + 4, "backward", step=number),
        Event("CPU:1", at, at + slow, "forward", step=number),
        Event("CPU:1", at + slow, at + 4 * slow, "backward", step=number),
        Event("CPU:0", at + 4 * slow, at + 4 * slow + 1, "update", step=number),
    ]


def test_each_second_of_a_device_is_of_one_kind():
    timeline = Timeline.of([*step(1, 0.0), *step(2, 5.0)])
    found = timeline.breakdown()
    assert found.num_steps == 2
    assert found.seconds["CPU:0"] == {"forward": 2.0, "backward": 6.0, "update": 2.0}
    assert found.seconds["CPU:1"] == {"forward": 2.0, "backward": 6.0, "waiting": 2.0}
    assert found.waited_for == {"CPU:0": {}, "CPU:1": {"update": 2.0}}
    for row in found.seconds.values():
        assert sum(row.values()) == pytest.approx(found.span) == 10.0
    assert found.part("backward") == 0.6
    assert found.slow is None


def test_what_runs_at_once_on_a_device_counts_once():
    both = [Event("CPU:0", 0, 4, "forward"), Event("CPU:0", 2, 6, "update"), Event("CPU:0", 5, 6, "other")]
    assert Breakdown.of(both).seconds["CPU:0"] == {"forward": 4, "update": 2}


def test_a_slow_device_is_named():
    found = Timeline.of(step(1, 0.0, slow=2.0)).breakdown()
    assert found.slow == "CPU:1"
    assert found.waited_for["CPU:0"] == {"CPU:1": 4.0}
    assert found.advice() == [
        "devices wait for CPU:1: 22% of the time; cn.Synchronous(shares='measured') gives it smaller slices",
        "update: 11% of the time; larger batches make fewer of them",
    ]


def test_input_and_checkpoints_count_where_devices_wait_for_them():
    events = [
        *step(1, 0.0),
        Event(HOST, 1.0, 9.0, "input", step=1),  # 4 s of it while the devices compute
        Event(HOST, 9.0, 10.0, "checkpoint", step=1),
        *step(2, 12.0),
    ]
    found = Breakdown.of(events)
    assert found.host == {"input": 8.0, "checkpoint": 1.0}
    assert found.waited_for["CPU:0"] == {"input": 4.0, "checkpoint": 1.0, PROGRAM: 2.0}
    assert found.waited_for["CPU:1"] == {"update": 2.0, "input": 4.0, "checkpoint": 1.0, PROGRAM: 2.0}
    assert found.advice()[0] == "input: 24% of the time; prefetch, or cache behind the map"
    assert any(words.startswith("between steps: 12%") for words in found.advice())


def test_stages_of_a_pipeline_wait_for_each_other():
    events = [Event(f"CPU:{i}", i, i + 1, "forward", stage=i, micro_batch=0) for i in range(3)]
    assert Breakdown.of(events).advice() == [
        "stages wait for each other: 67% of the time; more micro-batches, or a more even placement"
    ]


def test_in_words_and_as_a_table():
    text = Timeline.of([*step(7, 0.0), *step(8, 5.0)]).summary().splitlines()
    assert text[0].split() == ["device", "forward", "backward", "update", "waiting"]
    assert text[2].split() == ["CPU:1", "20%", "60%", "0%", "20%"]
    assert text[4] == "2 steps in 1e+04 ms, 5e+03 ms each, on 2 devices."
    assert text[5] == "Of the devices' time: forward 20%, backward 60%, update 10%, waiting 10%."
    assert text[6] == "They waited for update (10%)."


def test_nothing_at_all():
    assert Timeline.of([]).summary().endswith("Nothing was recorded.")
    assert Timeline.of([]).breakdown().advice() == []


def test_spans():
    assert merged([]) == []
    assert without([(0, 1), (2, 3)], [(0, 3)]) == []
    assert without([(0, 2), (3, 9)], [(1, 4), (5, 6)]) == [(0, 1), (4, 5), (6, 9)]
