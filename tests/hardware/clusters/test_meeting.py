"""Machines that keep in touch, in threads of one process; what would end a process is only noted."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hardware.clusters.test_rendezvous import all_of, clusters

from colonnade.errors import RESUMABLE, InvalidArgument
from colonnade.hardware.clusters.meeting import GRACE, IN_STEPS, OTHERWISE, Meeting


class Machine:
    """A machine whose end is noted and does not take place."""

    def __init__(self, cluster, links):
        self.ends = []
        self.ended = threading.Event()
        self.links = links
        self.meeting = Meeting(cluster, links, self.end)

    def end(self, words, code):
        self.ends.append((words, code))
        self.ended.set()


@pytest.fixture
def machines():
    made = clusters(3)
    results = all_of(made)
    started = [Machine(cluster, links) for cluster, (links, _) in zip(made, results, strict=True)]
    yield started
    for machine in started:
        for link in machine.links.values():
            link.close()


def at_once(machines, do):
    with ThreadPoolExecutor(len(machines)) as threads:
        return list(threads.map(do, machines))


def test_an_exchange_gives_all_the_values_of_all(machines):
    numbers = iter(range(3))
    for machine in machines:
        machine.number = next(numbers)
    for _ in range(20):
        assert at_once(machines, lambda m: m.meeting.exchange("a number", m.number)) == [[0, 1, 2]] * 3


def test_what_differs_is_raised_everywhere_with_who_has_it(machines):
    def agree(machine):
        value = "2" if machine is machines[1] else "1"
        with pytest.raises(InvalidArgument) as told:
            machine.meeting.agree("joining", {"same": "x", "version": value}, "Install the same")
        return str(told.value)

    for words in at_once(machines, agree):
        assert "version='2': is so on b, and 1 on a, c. Install the same." in words
        assert "same=" not in words


def test_a_connection_that_ends_ends_all(machines):
    for link in machines[2].links.values():
        link.close()
    for machine in machines[:2]:
        assert machine.ended.wait(1.0)
        words, code = machine.ends[0]
        assert words.startswith("c has ended")
        assert code == RESUMABLE


def test_the_end_of_the_first_ends_all(machines, monkeypatch):
    monkeypatch.setattr(machines[0].meeting, "_lose", lambda rank, what: None)  # it is dead, at once
    for link in machines[0].links.values():
        link.close()
    for machine in machines[1:]:
        assert machine.ended.wait(1.0)
        assert machine.ends[0][0].startswith("a has ended")


def test_a_silent_machine_ends_all(machines, monkeypatch):
    monkeypatch.setattr(machines[1].meeting, "_tell", lambda rank, message: None)
    for machine in machines:
        machine.meeting.silence = 1.0
    assert machines[0].ended.wait(4.0)
    assert machines[2].ended.wait(1.0)
    assert "b was not heard for 1 s" in machines[2].ends[0][0]


def test_who_says_something_long_over_a_slow_network_is_not_silent(machines, monkeypatch):
    """Its beats come after that; those of the first machine to the others come in time."""
    first, slow, other = machines
    monkeypatch.setattr(slow.meeting, "_tell", lambda rank, message: None)
    first.meeting.silence = other.meeting.silence = 1.0
    connection = slow.links[0]._connection
    with first.meeting._sending[1]:  # as if it were told something long as well
        connection.sendall((1000).to_bytes(8, "big"))
        for _ in range(5):
            assert not other.ended.wait(0.3)
            connection.sendall(b"x")
        assert not any(machine.ends for machine in machines)
    assert first.ended.wait(4.0)  # and when nothing more comes, it is
    assert "b was not heard for 1 s" in first.ends[0][0]


class Clock:
    """Goes on when it is told to."""

    now = 100.0

    def __call__(self):
        return self.now


class Line:
    """A connection on which nothing comes."""

    unanswered = 0.0

    def __init__(self):
        self.sent, self._end = [], threading.Event()

    def send(self, message):
        self.sent.append(message)

    def receive(self, heard):
        self._end.wait()

    def close(self):
        self._end.set()


@pytest.fixture
def clocked(monkeypatch):
    """The first machine of three, with a clock of its own; it looks around when it is told to."""
    monkeypatch.setattr(Meeting, "_beat", lambda self: None)
    clock, ends, lines = Clock(), [], {1: Line(), 2: Line()}
    first = Meeting(clusters(3)[0], lines, lambda *end: ends.append(end), clock)
    first.silence = 5.0

    def look(after):
        clock.now += after
        first._look()

    yield first, look, ends
    first._leaving = True
    for line in lines.values():
        line.close()


def test_who_stood_still_itself_does_not_take_the_others_for_silent(clocked):
    """As while TensorFlow starts its server, with Python locked; what the others said is still to be read."""
    _, look, ends = clocked
    look(0.5)
    look(30.0)
    assert ends == []
    for _ in range(9):
        look(0.5)
    assert ends == []  # 4.5 s since it goes on
    look(0.6)
    assert "b was not heard for 5 s" in ends[0][0]


def test_who_is_cut_off_is_missed_sooner_than_who_may_only_be_held_up(clocked):
    """Outside of steps: the system of a machine answers whatever its program does."""
    first, look, ends = clocked
    first.silence = OTHERWISE
    for _ in range(24):
        look(0.5)
    assert ends == []
    first._links[2].unanswered = IN_STEPS + 0.1
    look(0.5)
    assert "c was not heard for 12 s" in ends[0][0]


def test_a_machine_that_is_heard_is_there_whatever_its_system_answers(clocked):
    first, look, ends = clocked
    first.silence, first._links[2].unanswered = OTHERWISE, 60.0
    for _ in range(9):
        look(0.5)
    first._heard[2] = first._clock()
    look(0.6)
    assert ends == []


def test_in_long_steps_a_network_may_be_down_for_three_of_them(clocked):
    first, look, ends = clocked
    first.silence, first._links[2].unanswered = 30.0, 20.0
    for _ in range(40):
        look(0.5)
    assert ends == []


def test_who_stood_still_itself_gives_the_others_as_much_longer_to_be_back(clocked):
    first, look, ends = clocked
    first.back(patience=3.0)
    look(0.5)
    look(30.0)
    for rank in (1, 2):
        first._note(rank, {"back": 0, "patience": 3.0, "early": None})
    look(0.5)
    assert ends == []
    first.back(patience=3.0)
    for _ in range(7):
        look(0.5)
    assert "b, c hangs" in ends[0][0]


def test_machines_at_different_places_of_the_program_are_told(machines):
    threading.Thread(target=machines[0].meeting.exchange, args=("Trainer()", 1), daemon=True).start()
    threading.Thread(target=machines[1].meeting.exchange, args=("fit()", 1), daemon=True).start()
    for machine in machines:
        assert machine.ended.wait(2.0)
        words, code = machine.ends[0]
        assert code == 1
        assert "a is at Trainer()" in words
        assert "b is at fit()" in words


def test_who_is_not_back_from_steps_hangs(machines):
    for machine in machines[:2]:
        machine.meeting.back(patience=0.3)
    for machine in machines:
        assert machine.ended.wait(3.0)
        assert machine.ends[0][0].startswith("c hangs")
        assert machine.ends[0][1] == RESUMABLE


def test_who_is_back_sooner_because_of_its_data_is_named(machines):
    machines[1].meeting.back(patience=0.3, early="has come to the end of its data")
    assert machines[2].ended.wait(3.0)
    words, code = machines[2].ends[0]
    assert words.startswith("b has come to the end of its data, and a, c trains on")
    assert code == 1


def test_all_back_in_time_is_no_news(machines):
    for _ in range(3):
        for machine in machines:
            machine.meeting.back(patience=0.2)
    time.sleep(1.2)
    assert not any(machine.ends for machine in machines)


def test_machines_that_wait_for_each_other_in_a_step_end(machines):
    """As where a link is cut that is none of the first machine's."""
    with ExitStack() as calls:
        for machine in machines:
            calls.enter_context(machine.meeting.call(lambda: (0, False), 0.3))
        for machine in machines:
            assert machine.ended.wait(3.0)
            assert machine.ends[0][0].startswith("no machine ends its step")
            assert machine.ends[0][1] == RESUMABLE


def test_one_in_an_exchange_and_another_in_a_step_end(machines):
    threading.Thread(target=machines[1].meeting.exchange, args=("a new batch", 1), daemon=True).start()
    with machines[0].meeting.call(lambda: (0, False), 0.3), machines[2].meeting.call(lambda: (0, False), 0.3):
        assert machines[1].ended.wait(3.0)
    words, code = machines[1].ends[0]
    assert "do not run the same program: b is at a new batch, and " in words
    assert code == 1


def test_who_waits_for_its_data_does_not_hang(machines):
    reached = [(4, True)]
    with machines[2].meeting.call(lambda: reached[0], 0.1):
        time.sleep(1.0)  # until a beat has told of it
        for machine in machines[:2]:
            machine.meeting.back(patience=0.1)
        assert not machines[0].ended.wait(1.5)
        reached[0] = (5, False)
        assert machines[0].ended.wait(3.0)
    assert "c hangs" in machines[0].ends[0][0]


def test_a_goodbye_ends_nobody(machines):
    at_once(machines, lambda machine: machine.meeting.close())
    time.sleep(0.2)
    assert not any(machine.ends for machine in machines)


def test_a_failure_ends_the_others_after_a_while(machines):
    """They may fail for the same reason, and say more of it."""
    machines[1].meeting.close("ValueError: wrong")
    assert not machines[2].ended.wait(GRACE - 1)
    assert machines[2].ended.wait(3.0)
    # One that fails by itself fails again: nobody is to start them once more.
    assert machines[2].ends[0] == ("b failed: ValueError: wrong", 1)


def test_what_breaks_off_because_a_machine_failed_is_that_failure(machines):
    """Its connections end with it, which another may see before the time is over that it is given."""
    machines[1].meeting.close("ValueError: wrong")
    deadline = time.monotonic() + 2
    while 1 not in machines[2].meeting._gone and time.monotonic() < deadline:
        time.sleep(0.01)
    machines[2].meeting.lost("a sum failed")
    assert machines[2].ends[0] == ("b failed: ValueError: wrong", 1)


def test_what_breaks_off_for_another_reason_is_worth_another_start(machines):
    machines[2].meeting.lost("a sum failed")
    words = "a sum failed. To go on from the last save, start all machines again."
    assert machines[2].ends[0] == (words, RESUMABLE)


def test_to_wait_for_a_machine_that_has_ended_its_program_ends_too(machines):
    machines[2].meeting.close()
    threading.Thread(target=machines[1].meeting.exchange, args=("fit()", 1), daemon=True).start()
    assert machines[1].ended.wait(GRACE + 2)
    assert "c has ended its program, and fit() needs it" in machines[1].ends[0][0]
