"""From what a user asks of `setup` to what TensorFlow is told, or why it cannot be."""

from dataclasses import replace

import numpy as np
import pytest
from machines import CARDS

import colonnade as cn
from colonnade.hardware import layout
from colonnade.hardware.cards import Card
from colonnade.hardware.layout import Request, leased, plan


def refused(cards=(), **settings):
    with pytest.raises(ValueError, match="cannot work with") as caught:
        plan(Request(**settings), cards)
    return {problem.argument for problem in caught.value.problems}, str(caught.value)


@pytest.mark.parametrize(
    ("settings", "visible", "parts", "growth"),
    [
        ({}, (0, 1, 2, 3), ((None,),) * 4, None),
        ({"devices": 2}, (0, 1), ((None,),) * 2, None),
        ({"devices": (3, 1)}, (1, 3), ((None,),) * 2, None),
        ({"devices": ("GPU-2222",)}, (2,), ((None,),), None),
        ({"devices": ("GPU-3333", 0)}, (0, 3), ((None,),) * 2, None),
        ({"devices": 1, "memory": 0.9}, (0,), ((14745,),), None),
        ({"devices": 2, "memory": 4096}, (0, 1), ((4096,),) * 2, None),
        ({"devices": 1, "memory": 1}, (0,), ((16384,),), None),
        ({"growth": True, "devices": 1}, (0,), ((None,),), True),
        ({"growth": True, "memory": 0.5, "devices": 1}, (0,), ((8192,),), True),
        ({"virtual": 4}, (0,), ((3686,) * 4,), None),
        ({"virtual": 1}, (0,), ((14745,),), None),  # TensorFlow divides a card by limits only
        ({"virtual": 2, "devices": (3,), "memory": 1000}, (3,), ((1000,) * 2,), None),
        ({"devices": np.int64(2)}, (0, 1), ((None,),) * 2, None),
        ({"devices": np.array([2, 0])}, (0, 2), ((None,),) * 2, None),
        ({"devices": "GPU-1111"}, (1,), ((None,),), None),
        ({"virtual": np.int64(2), "memory": 100}, (0,), ((100,) * 2,), None),
    ],
)
def test_plan_with_cards(settings, visible, parts, growth):
    layout = plan(Request(**settings), CARDS)
    assert (layout.kind, layout.visible, layout.parts, layout.growth) == ("GPU", visible, parts, growth)


@pytest.mark.parametrize(
    ("settings", "arguments", "says"),
    [
        ({"devices": 5}, {"devices"}, "4 cards"),
        ({"devices": 0}, {"devices"}, "from 1 up"),
        ({"devices": -1}, {"devices"}, "from 1 up"),
        ({"devices": ()}, {"devices"}, "names no device"),
        ({"devices": (1, 1)}, {"devices"}, "twice"),
        ({"devices": (4,)}, {"devices"}, "from 0 to 3"),
        ({"devices": (-1,)}, {"devices"}, "no such position"),
        ({"devices": ("GPU-9",)}, {"devices"}, "Known UUIDs: GPU-0000"),
        ({"devices": True}, {"devices"}, "from 1 up"),
        ({"virtual": 0}, {"virtual"}, "from 1 up"),
        ({"virtual": 2, "devices": 2}, {"devices"}, "divide one card"),
        ({"memory": 17000}, {"memory"}, "more than card 0"),
        ({"memory": 0}, {"memory"}, "above 0"),
        ({"memory": -0.5}, {"memory"}, "above 0"),
        ({"memory": 1.5}, {"memory"}, "whole number"),
        ({"memory": 9000, "virtual": 2}, {"memory"}, "2 x 9000 MiB"),
        ({"memory": "all"}, {"memory"}, "fraction"),
        ({"devices": (0, "GPU-0000")}, {"devices"}, "twice"),
        ({"devices": 2.0}, {"devices"}, "count from 1 up"),
        ({"devices": object()}, {"devices"}, "count from 1 up"),
        ({"devices": ([0],)}, {"devices"}, "no such position"),
        ({"memory": float("inf")}, {"memory"}, "fraction"),
        ({"memory": 1e-6}, {"memory"}, "too little"),
        ({"virtual": 100_000}, {"virtual"}, "Ask for fewer"),
        ({"threads": 0}, {"threads"}, "pair"),
        ({"threads": (1, 2, 3)}, {"threads"}, "pair"),
        ({"growth": "yes"}, {"growth"}, "True, False or None"),
        ({"devices": 9, "memory": 10**6, "threads": -1}, {"devices", "memory", "threads"}, "threads=-1"),
    ],
)
def test_plan_refuses_with_cards(settings, arguments, says):
    found, message = refused(CARDS, **settings)
    assert found == arguments
    assert says in message


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"devices": 2}, "virtual=2"),
        ({"memory": 0.5}, "a fraction is one of a card, and this process sees none"),
        ({"memory": 1.5}, "Name MiB, a whole number"),
        ({"growth": True}, "is for cards"),
        ({"devices": ("GPU-0000",)}, "no visible card has this UUID"),
    ],
)
def test_plan_refuses_without_cards(settings, says):
    assert says in refused((), **settings)[1]


def test_an_op_has_one_thread_where_every_core_has_a_device(monkeypatch):
    monkeypatch.setattr(layout, "cores", lambda: 4)
    assert [plan(Request(virtual=n), ()).threads for n in (None, 1, 3, 4, 8)] == [None] * 3 + [(1, 0)] * 2
    assert plan(Request(virtual=8, threads=(4, 2)), ()).threads == (4, 2)
    monkeypatch.setattr(layout, "cores", lambda: 1)
    assert plan(Request(virtual=1), ()).threads is None  # one device is TensorFlow's own
    assert plan(Request(virtual=2, devices=(0,)), CARDS).threads is None


def test_processes_of_one_machine_divide_its_cores(monkeypatch):
    monkeypatch.setattr(layout, "cores", lambda: 8)
    monkeypatch.setattr(layout.os, "cpu_count", lambda: 8)
    threads = {(n, k): plan(Request(virtual=n), (), k).threads for n in (1, 2, 4) for k in (1, 2, 3, 8)}
    assert threads[1, 2] == threads[2, 2] == (4, 0)
    assert threads[1, 3] == (2, 0)
    assert threads[1, 8] == threads[4, 2] == threads[2, 3] == (1, 0)
    assert threads[1, 1] is None
    assert plan(Request(threads=3), (), 2).threads == (3, 3)
    monkeypatch.setattr(layout.os, "cpu_count", lambda: 16)  # and each has eight of its own
    assert plan(Request(virtual=1), (), 2).threads is None
    assert plan(Request(virtual=8), (), 2).threads == (1, 0)


def test_a_limit_on_the_cpu_is_kept_for_each_part():
    assert plan(Request(virtual=3, memory=512), ()).parts == ((512,) * 3,)


def test_a_limit_is_checked_on_the_cards_that_are_used():
    small = Card(4, "GPU-4444", "0000:09:00.0", "Small card", 4 * 2**30)
    assert plan(Request(devices=(0,), memory=8000), (*CARDS, small)).parts == ((8000,),)
    assert "Small card" in refused((*CARDS, small), memory=8000)[1]


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({}, {}, {}),
        ({}, {"COLONNADE_VIRTUAL": "3"}, {"virtual": 3}),
        ({"virtual": 2}, {"COLONNADE_VIRTUAL": "3"}, {"virtual": 2}),
        # Of a card of 16 GiB, or half of it, a tenth or 1 GiB is left to CUDA, whichever is more: it takes
        # memory in every process. Of little, TensorFlow has half.
        ({}, {"COLONNADE_MEMORY": "1"}, {"memory": 0.9}),
        ({}, {"COLONNADE_MEMORY": "0.5"}, {"memory": 0.4375}),
        ({}, {"COLONNADE_MEMORY": "0.0625"}, {"memory": 0.03125}),
        ({}, {"COLONNADE_MEMORY": "4096"}, {"memory": 4096}),
        ({"memory": 4096}, {"COLONNADE_MEMORY": "0.5"}, {"memory": 4096}),
        # Half a card was leased, so two devices on it share it.
        ({"virtual": 2}, {"COLONNADE_MEMORY": "0.5"}, {"virtual": 2, "memory": 0.21875}),
    ],
)
def test_what_was_leased_stands_in_for_what_is_left_open(settings, environment, expected):
    assert leased(Request(**settings), environment, CARDS) == Request(**expected)


def test_a_share_of_a_card_that_tensorflow_does_not_see_is_told_and_left_out():
    with pytest.warns(UserWarning, match=r"COLONNADE_MEMORY=0.5 from colonnade run is not used: .* no card"):
        assert leased(Request(), {"COLONNADE_MEMORY": "0.5"}, ()) == Request()


def test_a_part_of_a_memory_that_is_not_known_is_refused():
    untold = replace(CARDS[0], memory=None)
    assert plan(Request(memory=4096), [untold]).parts == ((4096,),)
    assert plan(Request(), [untold]).parts == ((None,),)
    for settings in ({"memory": 0.5}, {"virtual": 2}, {"virtual": 2, "memory": 0.5}):
        assert "does not tell how much memory" in refused([untold], **settings)[1]


@pytest.mark.parametrize("bad", ["", "many", "0", "-1", "nan"])
def test_what_was_leased_must_be_a_number(bad):
    environment = {"COLONNADE_VIRTUAL": bad, "COLONNADE_MEMORY": bad}
    with pytest.raises(cn.InvalidArgument) as caught:
        leased(Request(), environment, CARDS)
    assert [problem.argument for problem in caught.value.problems] == list(environment)
    assert leased(Request(virtual=2, memory=0.5), environment, CARDS) == Request(virtual=2, memory=0.5)


def test_a_small_card_keeps_room_for_cuda_itself():
    small = (replace(CARDS[0], memory=4 * 2**30),)
    assert plan(Request(virtual=2), small).parts == (((4096 - 1024) // 2,) * 2,)
    assert refused((replace(CARDS[0], memory=2**30),), virtual=1)[0] == {"virtual"}
