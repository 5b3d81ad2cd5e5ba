"""Races of the simulator are those of `reason.simulator.staleness`."""

from itertools import islice

import numpy as np
import pytest

from colonnade.reason.simulator.modes import SHOWN, SLICES, race_of
from colonnade.reason.simulator.staleness import Ledger, race


def test_equal_devices_have_gradients_one_age_younger_than_they_are_many():
    raced = race_of([1.0] * 4, [0.0] * 4, 0.0, None)
    assert raced.ages == {3: pytest.approx(4 * (SLICES - 8))}
    assert raced.seconds_per_slice == pytest.approx(0.25)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_bound_holds_and_costs_time(bound):
    free = race_of([1.0, 1.1, 2.5, 1.7], [0.0] * 4, 0.0, None)
    bounded = race_of([1.0, 1.1, 2.5, 1.7], [0.0] * 4, 0.0, bound)
    assert max(bounded.ages) <= bound
    assert bounded.seconds_per_slice >= free.seconds_per_slice


def test_the_order_is_that_of_the_generator():
    seconds, ledger, ages = [1.0, 2.0, 3.5], Ledger(None), []
    for kind, device in islice(race(seconds), 400):
        if kind == "read":
            ledger.read(device)
        else:
            ages.append(ledger.applied(device))
    raced = race_of(seconds, [0.0] * 3, 0.0, None)
    counted = {age: raced.ages[age] / sum(raced.ages.values()) for age in raced.ages}
    told = {age: ages.count(age) / len(ages) for age in set(ages)}
    for age, part in told.items():
        assert counted.get(age, 0.0) == pytest.approx(part, abs=0.05)


def test_one_update_at_a_time_sets_the_pace_of_many_devices():
    raced = race_of([0.1] * 32, [0.0] * 32, 0.05, None)
    assert raced.seconds_per_slice == pytest.approx(0.05)


def test_ways_to_a_far_parameter_server_take_time():
    near, far = (race_of([1.0, 1.0], [way, way], 0.0, None).seconds_per_slice for way in (0.0, 0.5))
    assert far == pytest.approx(2 * near)


def test_jitter_is_drawn_from_a_seed():
    one, same, other = (
        race_of([1.0] * 3, [0.0] * 3, 0.0, None, jitter=0.2, rng=np.random.default_rng(seed))
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one.seconds_per_slice != other.seconds_per_slice


def test_the_timeline_has_the_kinds_of_a_real_one():
    raced = race_of([3.0, 3.0], [0.5, 0.5], 0.25, None, forwards=[1.0, 1.0], pushed=64)
    first = [(e.kind, e.start, e.end, e.bytes, e.link) for e in raced.events if e.device == "1"][:4]
    assert first == [
        ("forward", 0.0, 1.5, 0, None),
        ("backward", 1.5, 3.5, 0, None),
        ("reduction", 3.5, 4.0, 64, "1 -> 0"),
        ("update", 4.0, 4.25, 0, None),
    ]
    assert {e.kind for e in raced.events if e.device == "0"} == {"forward", "backward", "update"}
    assert sum(e.kind == "forward" for e in raced.events) == 2 * SHOWN
