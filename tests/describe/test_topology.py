import json
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from topologies import PAIRS, machines, peers

import colonnade as cn
from colonnade.describe.topology import Device, Link, Topology


@given(machines())
@settings(max_examples=30, deadline=None)
def test_json_both_ways(machine):
    kinds, codes, numa = machine
    devices = [Device(f"card {i}", 2**34, 1e13, node) for i, node in enumerate(numa)]
    topology = Topology.build(devices, kinds, [[code in ("OK", "X") for code in row] for row in codes])
    assert Topology.from_json(topology.to_json()) == topology
    assert json.loads(topology.to_json())["devices"][0]["memory"] == 2**34


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"devices": [], "kinds": [], "links": []}',
        "null",
        None,
        '{"devices": 1, "kinds": [], "links": []}',
    ],
)
def test_json_that_is_no_topology(text):
    with pytest.raises(cn.InvalidArgument):
        Topology.from_json(text)


def test_uniform_and_groups():
    assert {link.kind for row in Topology.uniform(3, link="NV2").links for link in row} == {"X", "NV2"}
    own = Link("PIX", 1e9, 1e-6, True)
    assert Topology.uniform(2, link=own).link(1, 0) is own
    assert peers(Topology.groups([[0, 1], [2, 3]])) == PAIRS
    assert Topology.groups([[2, 0], [1]]).link(0, 2).peer
    for bad in ([], [[0], [0]], [[1]], [[0], ["1"]], [[]]):
        with pytest.raises(cn.InvalidArgument, match="exactly once"):
            Topology.groups(bad)
    for bad in (0, -1, True, 1.5, "2"):
        with pytest.raises(cn.InvalidArgument):
            Topology.uniform(bad)
    with pytest.raises(cn.InvalidArgument, match="no kind of link"):
        Topology.uniform(2, link="NVLINK")


def test_link_refuses_what_is_no_link():
    with pytest.raises(cn.InvalidArgument) as caught:
        Link("WIRE", -1, float("nan"), "yes")
    assert [problem.argument for problem in caught.value.problems] == ["kind", "bandwidth", "latency", "peer"]


def test_link_by_index():
    topology = Topology.uniform(2)
    assert topology.link(1, 1).kind == "X"
    for bad in (-1, 2, True, "0"):
        with pytest.raises(cn.InvalidArgument, match="from 0 to 1"):
            topology.link(0, bad)


def test_select_keeps_links_and_divides_cards():
    topology = Topology.groups([[0, 1], [2, 3]]).select([3, 0, 0])
    assert [topology.link(0, 1).kind, topology.link(1, 2).kind, topology.link(1, 1).kind] == [
        "SYS",
        "MEM",
        "X",
    ]


@settings(max_examples=60, deadline=None)
@given(machines(), st.data())
def test_best_is_exact(machine, data):
    kinds, codes, _ = machine
    kinds, codes = [row[:7] for row in kinds[:7]], [row[:7] for row in codes[:7]]
    topology = Topology.build(
        [Device()] * len(kinds), kinds, [[c in ("OK", "X") for c in row] for row in codes]
    )
    k = data.draw(st.integers(1, len(topology)))

    def worst(chosen):
        return min((topology.link(i, j).strength for i in chosen for j in chosen if i != j), default=())

    chosen = topology.best(k)
    assert len(set(chosen)) == k
    assert worst(chosen) == max(worst(other) for other in combinations(range(len(topology)), k))


def test_best_prefers_an_island_and_refuses_what_it_cannot_give():
    topology = Topology.groups([[0, 3, 5], [1, 2, 4]])
    assert topology.best(3) == (0, 3, 5)
    assert topology.best(2, among=[0, 1, 4]) == (1, 4)
    assert Topology.groups([range(0, 20, 2), range(1, 20, 2)]).best(10) == tuple(range(0, 20, 2))
    for bad in (0, 7, True, 1.0):
        with pytest.raises(cn.InvalidArgument, match="from 1 to 6"):
            topology.best(bad)
    with pytest.raises(cn.InvalidArgument, match="from 0 to 5"):
        topology.best(1, among=[9])


def test_links_must_fit_the_devices():
    with pytest.raises(cn.InvalidArgument, match="for each of 2 devices"):
        Topology((Device(), Device()), ((Link.of("X"),),))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda plain: plain["links"][0].pop(), "a link is missing"),
        (lambda plain: plain["links"][0].__setitem__(1, None), "no way between these devices"),
        (lambda plain: plain["links"][0].__setitem__(1, 99), "the position of one of"),
        (lambda plain: plain.update(devices=[]), "at least one"),
        (lambda plain: plain["devices"][0].update(colour="red"), r"devices\[0\]\.colour"),
        (lambda plain: plain["devices"][0].update(memory=-1), r"devices\[0\]\.memory"),
        (lambda plain: plain["kinds"][0].update(bandwidth=-1), "bandwidth"),
        (lambda plain: plain["kinds"][0].pop("peer"), r"kinds\[0\]\.peer"),
        (lambda plain: plain.update(version=2), "version"),
        (lambda plain: plain.update(weather="fine"), "weather"),
        (lambda plain: plain.update(adapters=-1), "adapters"),
        (lambda plain: plain.update(boxes=[1], machines=[0], network={}), "network"),
        (lambda plain: plain.update(boxes=[1], machines=[3]), "machines"),
    ],
)
def test_json_that_says_something_else_is_refused(change, said):
    plain = json.loads(Topology.uniform(3, "NV2").to_json())
    change(plain)
    with pytest.raises(cn.InvalidArgument, match=said):
        Topology.from_json(json.dumps(plain))


def test_all_that_is_wrong_with_a_machine_comes_in_one_error():
    plain = json.loads(Topology.uniform(3, "NV2").to_json())
    plain["devices"][1]["cores"], plain["links"][2][0], plain["extra"] = 0, 7, 1
    with pytest.raises(cn.InvalidArgument) as error:
        Topology.from_json(json.dumps(plain))
    assert {p.argument for p in error.value.problems} == {"devices[1].cores", "links[2][0]", "extra"}


def test_in_a_notebook():
    html = Topology.groups([[0, 1], [2, 3]])._repr_html_()
    assert html.count("<line") == 6
    assert "device 0 → device 1: PHB, 12 GB/s" in html
    assert "shared memory" in Topology.uniform(2)._repr_html_()
    assert "<line" not in Topology.uniform(1)._repr_html_()
