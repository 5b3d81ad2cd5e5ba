"""Costs against what nccl-tests measured, and laws that hold for any group."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import machine
from workloads import cards

from colonnade.describe.link import Device, Link
from colonnade.describe.topology import Topology
from colonnade.reason.transfers import cost

A100 = Topology.build(
    [Device("NVIDIA A100-SXM4-80GB")] * 8, [["X" if i == j else "NV12" for j in range(8)] for i in range(8)]
)


@pytest.mark.parametrize(
    ("size", "microseconds"), [(8_589_934_592, 64074.0), (1_073_741_824, 8203.9), (536_870_912, 4218.4)]
)
def test_large_reductions_of_eight_a100(size, microseconds):
    """ml-engineering@744d01e: large messages reach the bandwidth of the links; small ones are rougher."""
    group = cost.group_of(A100, range(8))
    assert 1e6 * cost.all_reduce(group, size) == pytest.approx(microseconds, rel=0.07)


def test_a_copy_without_peer_access_goes_through_the_host():
    direct, around = Link.of("PHB", peer=True), Link.of("PHB", peer=False)
    assert cost.copy(around, 1e9) > cost.copy(direct, 1e9)
    assert cost.copy(direct, 0) == 0
    assert cost.copy(direct, 1e9, sharing=4) > 3.9 * cost.copy(direct, 1e9)


@given(
    st.integers(2, 16),
    st.floats(1.0, 1e10),
    st.sampled_from(["ring", "tree", "scatter", "hierarchical", "best"]),
)
def test_more_bytes_take_longer_and_one_device_nothing(count, size, how):
    group = cost.group_of(cards(count, "PIX"), range(count))
    assert cost.all_reduce(group, size, how) < cost.all_reduce(group, 2 * size, how)
    assert cost.all_reduce(cost.group_of(cards(1), [0]), size, how) == 0
    assert cost.all_reduce(group, 0, how) == 0


def test_a_ring_is_its_two_halves():
    group = cost.group_of(cards(4), range(4))
    halves = cost.reduce_scatter(group, 1e9) + cost.all_gather(group, 1e9)
    assert cost.all_reduce(group, 1e9, "ring") == pytest.approx(halves, rel=0.01)
    assert cost.all_reduce(group, 1e9, "scatter") == pytest.approx(halves)


def test_between_machines_the_network_sets_the_pace_and_is_shared():
    joined = Topology.machines(machine("dgx1").topology, 2, network="100Gb")
    group = cost.group_of(joined, range(16))
    assert group.machines == 2
    assert group.bandwidth == 12e9
    assert cost.group_of(joined, [0, 8], sharing=8).bandwidth == 1.5e9
    assert cost.group_of(joined, range(8)).bandwidth == 120e9
    assert cost.all_reduce(group, 1e9, "hierarchical") > cost.all_reduce(cost.group_of(joined, range(8)), 1e9)


def test_a_slow_network_adds_its_latency_to_every_step():
    far = Topology.machines(Topology.uniform(1), 4, latency=0.1)
    assert cost.all_reduce(cost.group_of(far, range(4)), 1.0) > 0.7


def test_small_messages_prefer_the_tree_and_large_ones_the_ring():
    group = cost.group_of(Topology.machines(cards(8, "NV6"), 32), range(256))
    assert cost.all_reduce(group, 1e3, "tree") < cost.all_reduce(group, 1e3, "ring")
    assert cost.all_reduce(group, 1e9, "ring") < cost.all_reduce(group, 1e9, "tree")
    assert cost.all_reduce(group, 1e9, "best") == cost.all_reduce(group, 1e9, "ring")


def test_rows_of_all_devices_are_gathered():
    group = cost.group_of(cards(4), range(4))
    assert cost.gather_rows(group, 1e6) == pytest.approx(cost.all_gather(group, 4e6))


def test_the_processor_as_a_parameter_server():
    up_and_down = cost.through_host(cards(2), [0, 1], 12e9)
    assert up_and_down == pytest.approx(2.0, rel=0.01)
