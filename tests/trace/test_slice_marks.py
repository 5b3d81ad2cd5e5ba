"""What threads mark and graphs note, as events and waits."""

from colonnade.describe.timeline import Event
from colonnade.describe.waits import BOUND, EDGE
from colonnade.hardware.profile import MARK, ProfiledOp
from colonnade.run.trace.slice_marks import known_waits, slice_events

# The clock of graphs, by which moments are noted, is so far ahead of the profiler's.
AHEAD = 1000.0


def marks(*rows):
    return [ProfiledOp(name, MARK, start, end) for name, start, end in rows]


def note(words, moment, made, recorded):
    return (f"{words} {moment + AHEAD!r} {made + AHEAD!r}", recorded, recorded)


def test_a_slice_turns_where_its_graph_says_and_a_push_arrives():
    rows = marks(
        ("slice CPU:1 7", 0.0, 3.0),
        note("turned CPU:1", 1.0, 2.5, 2.75),  # a thread that had to wait between the two
        ("update CPU:1 7 64", 3.0, 5.0),
        note("arrived CPU:1", 3.5, 4.5, 4.5),
    )
    assert slice_events(rows, "CPU:0") == [
        Event("CPU:1", 0.0, 1.0, "forward", step=7),
        Event("CPU:1", 1.0, 3.0, "backward", step=7),
        Event("CPU:1", 3.0, 3.5, "reduction", bytes=64, step=7, link="CPU:1 -> CPU:0"),
        Event("CPU:1", 3.5, 5.0, "update", step=7),
    ]


def test_nothing_goes_anywhere_from_where_the_parameters_are():
    rows = marks(("update CPU:0 7 64", 0.0, 2.0), note("arrived CPU:0", 0.5, 1.0, 1.0))
    assert slice_events(rows, "CPU:0") == [Event("CPU:0", 0.0, 2.0, "update", step=7)]


def test_devices_have_notes_of_their_own_and_clocks_that_differ_leave_no_slice():
    rows = marks(
        ("slice CPU:0 1", 0.0, 4.0),
        ("slice CPU:1 1", 1.0, 3.0),
        note("turned CPU:1", 0.5, 2.0, 2.0),  # before its slice
        note("turned CPU:0", 1.5, 3.5, 3.5),
    )
    assert [(e.device, e.kind, e.start, e.end) for e in slice_events(rows, "CPU:0")] == [
        ("CPU:0", "forward", 0.0, 1.5),
        ("CPU:0", "backward", 1.5, 4.0),
        ("CPU:1", "forward", 1.0, 1.0),
        ("CPU:1", "backward", 1.0, 3.0),
    ]


def test_a_slice_that_failed_notes_nothing():
    assert slice_events(marks(("slice CPU:0 1", 0.0, 4.0)), "CPU:0") == [
        Event("CPU:0", 0.0, 4.0, "compute", step=1)
    ]


def test_waits_whose_cause_is_known():
    rows = marks(("bound CPU:1", 2.0, 3.0), ("queue CPU:1", 4.0, 6.0), ("queue CPU:0", 0.0, 9.0))
    known = known_waits(rows, "CPU:1", [(1.0, 2.0), (6.0, 7.0)], [(0.0, 0.5), (5.0, 5.5)], (0.0, 8.0))
    assert known == {BOUND: [(2.0, 3.0)], "input": [(5.0, 5.5)], EDGE: [(0.5, 1.0), (7.0, 8.0)]}


def test_a_device_that_did_nothing_is_at_the_edge_all_the_time():
    assert known_waits([], "CPU:1", [], [], (0.0, 8.0))[EDGE] == [(0.0, 8.0)]
