"""What machines are at, with a clock that only a test moves."""

from dataclasses import asdict

import pytest

from colonnade.errors import RESUMABLE
from colonnade.hardware.clusters.whereabouts import DATA, Doing, Whereabouts, deadlock, told

NAMES = ("a", "b", "c")


def python(calls=3):
    return Doing(calls)


def in_step(calls=3, seconds=0.0, patience=5.0):
    return Doing(calls, within=True, seconds=seconds, patience=patience)


def at_data(calls=3, seconds=0.0):
    return Doing(calls, within=True, data=True, seconds=seconds, patience=DATA)


def exchange(calls=3, seconds=0.0):
    return Doing(calls, topic="the next steps", seconds=seconds)


@pytest.mark.parametrize(
    "every",
    [
        [python(), python(), python()],
        [in_step(), in_step(), in_step()],
        [in_step(seconds=9, patience=10)] * 3,  # its steps take long
        [in_step(seconds=9), in_step(seconds=9), python(2)],  # c is slow: it traces, it has a callback
        [in_step(seconds=9), in_step(seconds=9), in_step(seconds=1)],  # c has just made a step
        [in_step(seconds=50), in_step(seconds=50), at_data(seconds=50)],  # c fills a shuffle
        [at_data(seconds=500)] * 3,  # all do
        [exchange(seconds=500), exchange(seconds=500), python()],  # c evaluates, or saves
        [exchange(seconds=500)] * 2 + [at_data(seconds=50)],
        # All have filled a shuffle, and c takes a little longer.
        [in_step(seconds=6), in_step(seconds=6), at_data(seconds=DATA + 30)],
        [exchange(seconds=30), exchange(seconds=30), at_data(seconds=DATA + 30)],
        [python(4), python(4), at_data(seconds=DATA + 30)],
        [in_step(seconds=4), exchange(2, seconds=500), in_step()],
    ],
)
def test_what_may_take_its_time(every):
    assert deadlock(every, NAMES) is None


@pytest.mark.parametrize(
    ("every", "words", "code"),
    [
        # Both reach a, and not each other.
        ([in_step(seconds=6)] * 3, "no machine ends its step", RESUMABLE),
        ([in_step(seconds=500), in_step(seconds=500), at_data(seconds=DATA + 1)], "data of c", RESUMABLE),
        ([exchange(seconds=500)] * 2 + [at_data(seconds=DATA + 1)], "the data of c do not", RESUMABLE),
        ([exchange(), in_step(seconds=6), exchange()], "b hangs: a, c made the steps", RESUMABLE),
        ([in_step(4), in_step(3, seconds=6), in_step(4)], "b hangs: a, c made the steps", RESUMABLE),
        ([in_step(seconds=6), python(), in_step(seconds=6)], "a, c hangs: b made the steps", RESUMABLE),
        (
            [exchange(2, seconds=6), in_step(seconds=6), in_step(seconds=6)],
            "a is at the next steps, and b",
            1,
        ),
    ],
)
def test_what_never_ends(every, words, code):
    found, exit_code = deadlock(every, NAMES)
    assert words in found
    assert exit_code == code


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_a_call_stands_still_from_its_last_step_on():
    clock, reached = Clock(), [(0, False)]
    here = Whereabouts(clock)
    assert here.look() == Doing(0)
    here.begin_call(lambda: reached[0], 5.0)
    here.look()
    clock.now += 4
    assert here.look() == Doing(1, within=True, seconds=4.0, patience=5.0)
    reached[0] = (1, False)
    assert here.look().seconds == 0
    clock.now += 6
    assert here.look().is_late
    reached[0] = (1, True)  # it waits for its data from now on
    assert here.look() == Doing(1, within=True, data=True, seconds=0.0, patience=DATA)
    clock.now += 100
    assert here.look().waits_for_data
    assert not here.look().is_late
    assert not here.look().waits_for_others
    here.end_call()
    assert here.look() == Doing(1)


def test_an_exchange_has_a_topic_and_a_beginning():
    clock = Clock()
    here = Whereabouts(clock)
    here.begin_exchange("the next steps")
    clock.now += 7
    assert here.look() == Doing(0, topic="the next steps", seconds=7.0)
    here.end_exchange()
    assert here.look() == Doing(0)


def test_a_call_that_ends_while_it_is_looked_at_stands_still_nowhere():
    clock = Clock()
    here = Whereabouts(clock)

    def ends():
        here.end_call()
        return 1, False

    here.begin_call(ends, 0.0)
    clock.now += 9
    assert here.look() == Doing(1)


def test_a_machine_tells_of_itself_in_json():
    assert told(asdict(in_step(seconds=2.5))) == in_step(seconds=2.5)
