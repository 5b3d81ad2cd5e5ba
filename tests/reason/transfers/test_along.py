"""Reductions along the engine's order, message by message."""

import numpy as np
import pytest
from workloads import cards

from colonnade.describe.topology import Topology
from colonnade.reason.transfers.along import reduced
from colonnade.reason.transfers.reduction import reduction

BANDWIDTH, LATENCY = 40e9, 1.85e-6


def test_a_pair_sends_there_and_back():
    ended, hops = reduced(cards(2), [((1, 0),)], np.zeros((2, 1)), np.array([40e9]))
    assert ended[0] == pytest.approx(1 + LATENCY)
    assert ended[1] == pytest.approx(2 + 2 * LATENCY)
    assert [(hop.source, hop.target, hop.bytes) for hop in hops] == [(1, 0, 40 * 10**9), (0, 1, 40 * 10**9)]


def test_messages_follow_each_other_so_a_chain_takes_little_longer_than_a_hop():
    """Three devices in a row, many messages: the second hop begins when the first message is there."""
    rounds = [((2, 1),), ((1, 0),)]
    one = reduced(cards(3), rounds, np.zeros((3, 1)), np.array([40e9]), back=False)[0][0]
    many = reduced(cards(3), rounds, np.zeros((3, 100)), np.full(100, 4e8), back=False)[0][0]
    assert one == pytest.approx(2, rel=1e-3)
    assert many == pytest.approx(1.01, rel=1e-2)


def test_a_message_waits_until_its_gradients_are_there():
    ready = np.array([[0.0, 0.0], [0.0, 5.0]])
    ended, _ = reduced(cards(2), [((1, 0),)], ready, np.array([4e9, 4e9]), back=False)
    assert ended[0] == pytest.approx(5.1, rel=1e-3)


def test_who_gets_several_sums_adds_them_one_by_one():
    star = [tuple((i, 0) for i in range(1, 5))]
    ended, _ = reduced(Topology.uniform(5), star, np.zeros((5, 1)), np.array([8.0]), back=False, addition=0.5)
    assert ended[0] == pytest.approx(4 * 0.5)


def test_all_devices_have_the_sum_at_the_end():
    topology = Topology.machines(cards(4), 8)
    ended, hops = reduced(topology, list(reduction(topology)), np.zeros((32, 3)), np.full(3, 1e6))
    assert np.isfinite(ended).all()
    assert len(hops) == 2 * 31
    assert ended.max() > ended[0] > 0
