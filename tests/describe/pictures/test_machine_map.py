"""Machines as pictures, however large."""

from collections import Counter

from colonnade.describe.pictures.machine_map import MOST_DEVICES, count_links, told, traffic_map
from colonnade.describe.topology import Topology


def test_a_large_machine_is_counted_and_not_drawn():
    html = Topology.uniform(256, "NV4")._repr_html_()
    assert len(html) < 2000
    assert "256 devices; up to 32 are drawn" in html
    assert f">{256 * 255:,}<" in html
    html = Topology.machines(Topology.groups([[0, 1], [2, 3]]), 2500)._repr_html_()
    assert "10,000 devices on 2,500 machines" in html
    assert len(html) < 3000
    for kind in ("PHB", "SYS", "NET"):
        assert f">{kind}<" in html


def test_as_many_as_can_be_seen_are_drawn():
    pairs = MOST_DEVICES * (MOST_DEVICES - 1) // 2
    assert Topology.uniform(MOST_DEVICES)._repr_html_().count("<line") == pairs
    assert "<line" not in Topology.uniform(MOST_DEVICES + 1)._repr_html_()


def test_counts_are_those_of_all_pairs():
    box = Topology.groups([[0, 1], [2]])
    for topology in (box, Topology.machines([box, Topology.uniform(2), box])):
        n = range(len(topology))
        assert count_links(topology) == Counter(topology.links[i][j] for i in n for j in n if i != j)
    assert count_links(Topology.uniform(1)) == Counter()


def test_traffic_between_devices_of_which_no_link_is_known():
    html = traffic_map(["a", "b"], None, {("a", "b"): 2048.0, ("a", "a"): 1.0})
    assert html.count("<line") == 1
    assert "a \u2192 b: 2.0 KiB" in html
    names = [str(i) for i in range(40)]
    html = traffic_map(names, Topology.uniform(2, "NV2"), {("0", "1"): 1.0, ("1", "39"): 2.0})
    assert html.index("1 \u2192 39") < html.index("0 \u2192 1")
    assert html.count(told(Topology.uniform(2, "NV2").link(0, 1))) == 1
    assert "<table" not in traffic_map(names, None, {})
