"""Rings on machines whose reductions were measured."""

import pytest
from machines import machine
from workloads import cards

from colonnade.describe.link import Device
from colonnade.describe.topology import Topology
from colonnade.reason.transfers.rings import ring_bandwidth


def test_a_cube_mesh_of_single_links_has_all_of_them_in_rings():
    """DGX-1: six NVLinks of 20 GB/s each from every card."""
    assert ring_bandwidth(machine("dgx1").topology, tuple(range(8))) == 120e9
    assert ring_bandwidth(machine("dgx1").topology, (0, 1, 2, 3)) == 80e9
    assert ring_bandwidth(machine("dgx1").topology, (0, 1)) == 20e9


def test_behind_a_switch_a_card_sends_with_all_its_links_at_once_and_no_more():
    for members in ((0, 1), (0, 3, 5), tuple(range(8))):
        assert ring_bandwidth(machine("nvswitch").topology, members) == pytest.approx(18 * 20.6e9)


def test_on_pcie_the_slowest_link_of_the_best_ring_counts():
    assert ring_bandwidth(machine("article").topology, (0, 1)) == 12e9
    slow = min(link.bandwidth for row in machine("article").topology.links for link in row)
    assert ring_bandwidth(machine("article").topology, (0, 1, 2, 3)) == slow


def test_a_pair_with_nvlinks_and_a_third_card_without_drops_to_pcie():
    """2 x A100 with a bridge reach 208 GB/s, and 20 with a third card beside them."""
    names = [Device("NVIDIA A100-PCIE-40GB")] * 3
    kinds = [["X", "NV12", "NODE"], ["NV12", "X", "NODE"], ["NODE", "NODE", "X"]]
    box = Topology.build(names, kinds)
    assert ring_bandwidth(box, (0, 1)) == 240e9
    assert 15e9 < ring_bandwidth(box, (0, 1, 2)) < 25e9


def test_one_device_and_shared_memory_have_no_limit():
    assert ring_bandwidth(cards(1), (0,)) == float("inf")
    assert ring_bandwidth(Topology.uniform(4), (0, 1, 2, 3)) == float("inf")


def test_many_devices_take_no_time_to_look_at():
    assert ring_bandwidth(cards(64, "PIX"), tuple(range(64))) == 12e9
