from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colonnade.reason.simulator.staleness import Ledger, ReadOrApply, race


def ages(events, bound=None):
    ledger, found = Ledger(bound), []
    for kind, device in events:
        if kind == "read":
            assert ledger.may_read()
            ledger.read(device)
        else:
            found.append(ledger.applied(device))
    return found


def test_the_drawn_table():
    events = [f"{kind} {device}" for kind, device in islice(race([1.0, 2.0]), 9)]
    assert events == [
        *("read 0", "read 1", "apply 0", "read 0"),
        *("apply 1", "read 1", "apply 0", "read 0", "apply 0"),
    ]
    assert ages(islice(race([1.0, 2.0]), 7)) == [0, 1, 1]


@pytest.mark.parametrize("devices", [1, 2, 6])
def test_equal_devices_apply_in_turn_with_an_age_of_all_others(devices):
    found = ages(islice(race([1.0] * devices), 20 * devices))
    assert set(found[devices:]) == {devices - 1}


def test_without_staleness_devices_take_turns():
    events = list(islice(race([1.0, 4.0, 2.0], max_staleness=0), 12))
    assert events == [ReadOrApply(kind, i) for _ in range(2) for i in range(3) for kind in ("read", "apply")]


@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=8),
    bound=st.integers(0, 10),
    length=st.integers(1, 300),
)
def test_no_age_is_above_the_bound_and_nobody_waits_for_ever(seconds, bound, length):
    events = list(islice(race(seconds, bound), length))
    found = ages(events, bound)
    assert max(found, default=0) <= bound
    working = {device for kind, device in events if kind == "read"}
    # Where no device is slower than all others together, each one's turn comes.
    if length >= 200 and max(seconds) / min(seconds) < 4:
        assert working == set(range(len(seconds)))


@given(bound=st.integers(0, 6), choices=st.lists(st.integers(0, 7), max_size=200))
def test_any_order_that_the_ledger_allows_is_within_the_bound(bound, choices):
    """Whoever reads as soon as it may, and whoever applies next."""
    ledger = Ledger(bound)
    for device in choices:
        if ledger.is_reading(device):
            assert ledger.applied(device) <= bound
        elif ledger.may_read():
            ledger.read(device)


def test_at_most_one_more_than_the_bound_work_at_the_same_time():
    ledger = Ledger(bound=2)
    reading = 0
    while ledger.may_read():
        ledger.read(reading)
        reading += 1
    assert reading == 3


def test_what_is_left_out_is_no_update():
    ledger = Ledger(bound=0)
    ledger.read(0)
    ledger.left_out(0)
    assert ledger.may_read()
    assert ledger.updates == 0
