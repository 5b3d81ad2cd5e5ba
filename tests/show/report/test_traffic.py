"""What a page draws of devices and links: those of the topology, with the traffic on them."""

import json
from xml.etree import ElementTree

import pytest
from runs import run_folder

from colonnade.describe.pictures.machine_map import told
from colonnade.describe.run_folder import read_run
from colonnade.describe.topology import Topology
from colonnade.show.report.traffic import LinkTraffic

FOUR = [f"GPU:{i}" for i in range(4)]


def traffic(folder, topology=None, **changes):
    if topology is not None:
        plain = json.loads(topology.to_json()) if isinstance(topology, Topology) else topology
        changes["topology"] = plain
    return LinkTraffic.of(read_run(run_folder(folder, **changes)))


def lines(html):
    return [
        (line.get("stroke"), line.find("title").text)
        for line in ElementTree.fromstring(f"<div>{html}</div>").iter("line")
    ]


def test_links_of_the_topology_are_drawn_with_what_goes_over_them(tmp_path):
    links = [{"from": "GPU:1", "to": "GPU:0", "bytes": 2**20}, {"from": "GPU:0", "to": "GPU:3", "bytes": 5}]
    topology = Topology.groups([[0, 1], [2, 3]], near="NV4")
    found = traffic(tmp_path / "a", topology, devices=FOUR, links=links)
    near, far = told(topology.link(0, 1)), told(topology.link(0, 2))
    drawn = lines(found.html)
    thin = [words for colour, words in drawn if colour == "currentColor"]
    assert thin == [
        f"GPU:0 \u2194 GPU:2: {far}",
        f"GPU:1 \u2194 GPU:2: {far}",
        f"GPU:1 \u2194 GPU:3: {far}",
        f"GPU:2 \u2194 GPU:3: {near}",
    ]
    assert [words for colour, words in drawn if colour != "currentColor"] == [
        f"GPU:1 \u2192 GPU:0: 1.0 MiB\nGPU:0 \u2194 GPU:1: {near}",
        f"GPU:0 \u2192 GPU:3: 5 B\nGPU:0 \u2194 GPU:3: {far}",
    ]
    assert found.words.startswith("1.0 MiB in all, as counted. ")
    assert f"Links from one device to another: {far} (8); {near} (4)." in found.words
    assert not found.damaged


def test_a_topology_without_traffic(tmp_path):
    found = traffic(tmp_path / "a", Topology.uniform(2), links=[])
    assert [words for _, words in lines(found.html)] == ["CPU:0 \u2194 CPU:1: MEM, shared memory"]
    assert found.words.startswith("No bytes were counted. Links from one device to another: MEM,")


def test_without_a_topology_there_is_the_traffic(tmp_path):
    found = traffic(tmp_path / "a")
    assert len(lines(found.html)) == 1
    assert found.words == "4.0 MiB in all, as counted."
    assert not found.damaged
    assert traffic(tmp_path / "b", links=[]).html == ""


def test_devices_that_the_topology_does_not_know(tmp_path):
    links = [{"from": "host", "to": "CPU:1", "bytes": 7}]
    found = traffic(tmp_path / "a", Topology.uniform(2), links=links)
    assert found.names == ("CPU:0", "CPU:1", "host")
    assert [words for _, words in lines(found.html)] == [
        "CPU:0 \u2194 CPU:1: MEM, shared memory",
        "host \u2192 CPU:1: 7 B",
    ]


def test_many_devices_are_counted(tmp_path):
    names = [f"GPU:{i}" for i in range(256)]
    links = [{"from": a, "to": b, "bytes": 1000 + i} for a in names for i, b in enumerate(names) if a != b]
    box = Topology.uniform(8, "NV4")
    found = traffic(tmp_path / "a", Topology.machines(box, 32), devices=names, links=links)
    assert len(found.html) < 20_000
    assert "<line" not in found.html
    assert "GPU:0 \u2192 GPU:255" in found.html
    assert f"and {256 * 255 - 32:,} more" in found.html
    assert ">NET<" in found.html


@pytest.mark.parametrize("broken", [7, "x", [1], {}, {"version": 1}, {"version": 1, "devices": 3}])
def test_files_may_hold_anything(tmp_path, broken):
    found = traffic(tmp_path / "a", broken)
    assert found.damaged
    assert len(lines(found.html)) == 1
    assert traffic(tmp_path / "b", Topology.uniform(3)).damaged  # of three devices, where two are listed
    assert LinkTraffic.of(read_run(run_folder(tmp_path / "c", devices=broken, links=broken))).html == ""
