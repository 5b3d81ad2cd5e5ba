"""Bytes and overlap of divided variables, against sums that are written out."""

import pytest

from colonnade.reason.transfers.sharded import LayerGroup, exposed, gathers

ALL = ("slots", "gradients", "parameters")
EVEN = [LayerGroup(1.0, 2.0, 0.5, 0.5)] * 4


def test_without_overlap_all_messages_count():
    """A scatter and a gather; with parameters divided two gathers, half as much again."""
    assert exposed(EVEN, ("slots",), overlap=False) == 4.0
    assert exposed(EVEN, ("slots", "gradients"), overlap=False) == 4.0
    assert exposed(EVEN, ALL, overlap=False) == 1.5 * 4.0
    assert exposed(EVEN, ("slots", "parameters"), overlap=False) == 4.0  # the engine keeps what it has read


def test_a_part_is_hidden_by_the_work_beside_it():
    # The first gather ahead, the first gather back, and the scatter of what comes up last.
    assert exposed(EVEN, ALL, overlap=True) == 1.5
    # All of the gather after the update, and the last scatter.
    assert exposed(EVEN, ("slots",), overlap=True) == 2.5
    slow = [LayerGroup(0.0, 0.0, 0.5, 0.5)] * 4
    assert exposed(slow, ALL, overlap=True) == exposed(slow, ALL, overlap=False)


def test_where_links_are_the_limit_they_are_never_idle():
    slow = [LayerGroup(0.1, 0.2, 5.0, 5.0)] * 4
    assert exposed(slow, ALL, overlap=True) == pytest.approx(20 + 40, rel=0.03)


def test_micro_batches_gather_again_and_add_up_what_is_not_divided():
    assert exposed(EVEN, ALL, overlap=False, times=3) == 3 * 6.0
    assert exposed(EVEN, ("slots",), overlap=False, times=3) == 4.0


def test_what_is_gathered_when():
    assert gathers(("slots", "gradients")) == (False, False, True)
    assert gathers(ALL) == (True, True, False)
    assert gathers(("slots", "parameters")) == (True, False, False)
