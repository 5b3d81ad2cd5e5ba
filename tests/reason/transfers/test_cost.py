"""Costs against what nccl-tests measured, and laws that hold for any group."""

from statistics import median

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


# Four machines of eight A100, each with eight adapters of 200 Gbit/s: bytes, and microseconds by nccl-tests.
FOUR_DGX_A100 = {
    2**20: 135.3,
    2**21: 161.5,
    2**22: 228.7,
    2**23: 320.3,
    2**24: 381.0,
    2**25: 586.2,
    2**26: 1079.5,
    2**27: 2281.2,
    2**28: 3083.1,
    2**30: 11643.0,
    2**32: 43557.0,
}


def test_reductions_over_machines_of_every_size():
    """NVIDIA/deepops, its guide to clusters under Slurm. Without what a tree reaches with messages of medium
    size they were a sixth too fast at the median."""
    card = Device("NVIDIA A100-SXM4-80GB")
    box = Topology((card,) * 8, Topology.uniform(8, "NV12").links)
    group = cost.group_of(Topology.machines(box, 4, network="200Gb", adapters=8), range(32))
    off = [1e6 * cost.all_reduce(group, size, "best") / took - 1 for size, took in FOUR_DGX_A100.items()]
    assert median(map(abs, off)) < 0.08
    assert max(map(abs, off)) < 0.3


@given(st.floats(1.0, 1e11), st.floats(1.0, 2.0))
def test_a_tree_takes_longer_for_more_bytes_also_where_it_reaches_more(size, times):
    group = cost.group_of(cards(8, "NV6"), range(8))
    assert cost.all_reduce(group, size, "tree") <= cost.all_reduce(group, size * times, "tree")


def test_rows_of_all_devices_are_gathered():
    group = cost.group_of(cards(4), range(4))
    assert cost.gather_rows(group, 1e6) == pytest.approx(cost.all_gather(group, 4e6))


def test_the_processor_as_a_parameter_server():
    up_and_down = cost.through_host(cards(2), [0, 1], 12e9)
    assert up_and_down == pytest.approx(2.0, rel=0.01)


def test_a_card_alone_takes_one_adapter():
    """Two machines of eight A100 with eight adapters of 200 Gbit/s, of which 24 GB/s arrive each."""
    card = Device("NVIDIA A100-SXM4-80GB")
    box = Topology((card,) * 8, Topology.uniform(8, "NV12").links)
    two = Topology.machines(box, 2, network="200Gb", adapters=8)
    assert two.link(0, 8).bandwidth == 24e9
    assert cost.group_of(two, [0, 8]).bandwidth == 24e9
    assert cost.group_of(two, [0, 1, 8, 9]).bandwidth == 48e9
    assert cost.group_of(two, range(16)).bandwidth == 192e9
    assert cost.group_of(two, [0, 8], sharing=8).bandwidth == 24e9
    assert cost.group_of(two, [0, 8], sharing=16).bandwidth == 12e9
    assert Topology.from_json(two.to_json()) == two
    assert two.select([0, 1, 8]).adapters == 8


@pytest.mark.parametrize(("adapters", "each"), [(8, 24e9), (4, 24e9), (2, 12e9)])
def test_a_hierarchical_reduction_is_two_rings_one_in_the_other(adapters, each):
    """Inside 2 x 3/4 of all over PCIe, between 2 x 3/4 of a quarter, of four cards at once."""
    box = Topology((Device("Tesla V100-SXM2-16GB"),) * 4, Topology.uniform(4, "PIX").links)
    four = Topology.machines(box, 4, network="200Gb", adapters=adapters)
    expected = 2 * 0.75 * 1e9 / 12e9 + 2 * 0.75 * 0.25e9 / each
    assert cost.all_reduce(cost.group_of(four, range(16)), 1e9, "hierarchical") == pytest.approx(
        expected, rel=3e-3
    )
