"""What goes through the busiest device, counted along the orders of the engine, is what the formulas say."""

from math import log2

import pytest

from colonnade import InvalidArgument
from colonnade.describe.topology import Topology
from colonnade.reason.transfers.busiest import seconds, through_busiest


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_the_formulas_hold(n):
    topology = Topology.uniform(n, "NV2")
    assert through_busiest(topology, "star") == 2 * (n - 1)
    assert through_busiest(topology, "tree") == 2 * log2(n)
    assert through_busiest(topology, "ring") == pytest.approx(2 * (n - 1) / n)


@pytest.mark.parametrize("n", [3, 5, 6, 7])
def test_a_ring_is_even_for_other_numbers_too(n):
    assert through_busiest(Topology.uniform(n, "NV2"), "ring") == pytest.approx(2 * (n - 1) / n)


def test_islands_keep_their_part():
    """Two islands of four: as even, with one message between the islands for each bucket."""
    assert through_busiest(Topology.groups([[0, 1, 2, 3], [4, 5, 6, 7]]), "ring") == 1.75


def test_seconds_are_bytes_over_bandwidth():
    assert seconds(Topology.uniform(4, "PIX"), "tree", 12e9) == pytest.approx(4.0)


def test_another_way_is_refused():
    with pytest.raises(InvalidArgument, match="how"):
        through_busiest(Topology.uniform(4), "hypercube")
