"""Where the time went, on timelines whose answer is known."""

import pytest

from colonnade.describe.breakdown import Breakdown
from colonnade.describe.timeline import Event, Timeline
from colonnade.describe.waits import BOUND, HOST, PROGRAM


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
    assert text[4] == "2 steps in 10 s, 5 s each, on 2 devices."
    assert text[5] == "Of the devices' time: forward 20%, backward 60%, update 10%, waiting 10%."
    assert text[6] == "They waited for update (10%)."


def test_nothing_at_all():
    assert Timeline.of([]).summary().endswith("Nothing was recorded.")
    assert Timeline.of([]).breakdown().advice() == []


def test_a_device_with_slow_slices_is_slow_though_it_works_no_longer():
    quick = [Event("CPU:0", at, at + 1, "forward", step=at) for at in range(6)]
    slow = [Event("CPU:1", at, at + 3, "forward", step=at) for at in (0, 3)]
    found = Timeline.of([*quick, *slow]).breakdown()
    assert (found.slow, found.advice()) == ("CPU:1", [])
    assert found.sentences()[-1] == "CPU:1 is slow: it computes 3 times as long as the others."
    one_that_was_disturbed = [*quick, Event("CPU:1", 0, 1, "forward"), Event("CPU:1", 1, 2, "forward")]
    one_that_was_disturbed += [Event("CPU:1", 2, 6, "forward")]
    assert Timeline.of(one_that_was_disturbed).breakdown().slow is None


def test_a_device_that_is_slower_by_chance_is_not_called_slow():
    """Half of the other's slices took as long as most of its own: they share cores with something."""
    lengths = {"CPU:0": (1, 1, 3, 3, 3, 3, 3, 3), "CPU:1": (2, 2, 2, 3, 3, 3, 3, 3)}
    events = [
        Event(device, 10 * i, 10 * i + seconds, "forward", step=i)
        for device, each in lengths.items()
        for i, seconds in enumerate(each)
    ]
    assert Timeline.of(events).breakdown().slow is None
    always = [Event("CPU:1", 10 * i, 10 * i + 4, "forward", step=i) for i in range(8)]
    assert Timeline.of([*(e for e in events if e.device == "CPU:0"), *always]).breakdown().slow == "CPU:1"


def test_devices_that_differ_by_chance_are_told_of_a_mode_without_waiting():
    events = [
        Event(f"CPU:{i % 2}", at, at + 1, "forward", step=at) for at, i in ((0, 0), (1, 1), (2, 0), (3, 1))
    ]
    assert Timeline.of(events).breakdown().advice() == [
        "devices wait for each other: 50% of the time; with cn.Asynchronous they do not"
    ]


def test_a_wait_that_says_what_it_is_for_is_blamed_on_that():
    events = [
        Event("CPU:0", 0, 10, "forward"),
        Event("CPU:1", 0, 4, "forward"),
        Event("CPU:1", 4, 9, "waiting", cause=BOUND),
        Event(HOST, 5, 6, "checkpoint"),
    ]
    found = Breakdown.of(events)
    assert found.waited_for["CPU:1"] == {"checkpoint": 1, BOUND: 4, "CPU:0": 1}
    assert found.advice() == [
        "staleness: 20% of the time devices may not read yet; a larger max_staleness lets them"
    ]


def test_devices_are_told_in_the_order_in_which_people_count():
    rows = Breakdown.of([Event(f"CPU:{i}", 0, 1, "forward") for i in (10, 2, 1)]).__str__().splitlines()
    assert [row.split()[0] for row in rows[1:4]] == ["CPU:1", "CPU:2", "CPU:10"]


def test_a_slow_device_may_be_called_anything():
    events = [
        event
        for i in range(8)
        for event in (
            Event("a{0} {", i, i + 0.9, "forward", step=i),
            Event("b", i, i + 0.2, "forward", step=i),
        )
    ]
    assert any("wait for a{0} {: " in words for words in Breakdown.of(events).sentences())
