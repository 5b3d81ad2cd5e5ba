import pytest

from colonnade.reason.simulator.pool import share


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
