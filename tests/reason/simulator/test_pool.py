import pytest

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator.pool import capacity_of, share


def test_tasks_at_once_share_what_there_is():
    alone = share([["a"]], {"a": 2.0}, lambda task: None, 1.0)
    assert alone["a"] == (0.0, 2.0)
    both = share([["a"], ["b"]], {"a": 2.0, "b": 2.0}, lambda task: None, 1.5)
    assert both["a"][1] == both["b"][1] == pytest.approx(4 / 1.5)
    enough = share([["a"], ["b"]], {"a": 2.0, "b": 1.0}, lambda task: None, 2.0)
    assert (enough["a"][1], enough["b"][1]) == (2.0, 1.0)


def test_no_work_is_lost_and_none_is_made():
    seconds = {(d, i): 0.1 * (d + 1) * (i + 1) for d in range(5) for i in range(4)}
    orders = [[(d, i) for i in range(4)] for d in range(5)]
    times = share(orders, seconds, lambda task: None, 1.0)
    assert max(end for _, end in times.values()) == pytest.approx(sum(seconds.values()))


def test_a_task_waits_for_what_it_needs():
    needs = {"b": "a"}
    times = share([["a"], ["b"]], {"a": 1.0, "b": 1.0}, needs.get, 2.0)
    assert times["b"] == (1.0, 2.0)


def test_orders_that_wait_for_each_other_are_noticed():
    with pytest.raises(AssertionError, match="wait for each other"):
        share([["a"], ["b"]], {"a": 1.0, "b": 1.0}, {"a": "b", "b": "a"}.get, 2.0)


def test_tasks_that_take_no_time_end():
    assert share([["a", "b"]], {"a": 0.0, "b": 1.0}, lambda task: None, 1.0)["b"] == (0.0, 1.0)


def test_devices_that_hinder_each_other_do_so_only_at_once():
    alone = share([["a"]], {"a": 1.0}, lambda task: None, 0.5)
    assert alone["a"] == (0.0, 1.0)
    both = share([["a"], ["b"]], {"a": 1.0, "b": 1.0}, lambda task: None, 0.5)
    assert both["b"] == (0.0, 4.0)
    beside = share([["a"]], {"a": 1.0}, lambda task: None, 0.5, beside=2)
    assert beside["a"] == (0.0, 4.0)


def virtual(count, cores):
    return Topology([Device("CPU", cores=cores)] * count, Topology.uniform(count).links)


def test_what_devices_gain_at_once_was_measured_or_follows_from_the_cores_of_one():
    plan = Plan(batch=16, data=2)
    # Between both sizes, among others as alone, a device takes the mean of what it takes at each.
    (one, two) = (Timing(4, 1.0, 1.0, 1.0), Timing(12, 3.0, 3.0, 1.5))
    measured = Workload.of([LayerCost("a", timings=(one, two))], batch=16, cores=1.0)
    assert capacity_of(virtual(2, 2), measured, plan) == pytest.approx(4.0 / 3.0)
    assert capacity_of(virtual(2, 1), measured, plan.with_(data=1, devices=(0,))) == 1.0
    told = Workload.of([LayerCost("a", timings=(Timing(4, 1.0, 1.0),))], batch=16, cores=1.6)
    assert capacity_of(virtual(2, 2), told, plan) == 1.25
    assert capacity_of(Topology.uniform(2, "NV1"), told, plan) is None
