from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.describe.topology import Device, Topology
from colonnade.errors import InvalidArgument
from colonnade.reason.transfers.reduction import reduction

KINDS = ("NV1", "NV2", "PIX", "PXB", "PHB", "NODE", "SYS", "NET")


def run(topology, root=0):
    """Carry out the rounds on one-hot sums; checks the rules of a round on the way."""
    sums = [Counter({i: 1}) for i in range(len(topology))]
    sent = set()
    rounds = list(reduction(topology, root))
    for pairs in rounds:
        devices = [device for pair in pairs for device in pair]
        assert len(set(devices)) == len(devices)  # a device sends or receives, once
        for source, target in pairs:
            assert source not in sent
            assert target not in sent
            sums[target] += sums[source]
            sent.add(source)
    assert sums[root] == Counter(range(len(topology)))  # everything arrived, nothing twice
    return rounds


def messages(topology, rounds):
    """How many messages each kind of link carries."""
    return Counter(topology.link(*pair).kind for pairs in rounds for pair in pairs)


def test_the_table_in_the_comment():
    # round | 0        1    2        3
    # ------+--------------------------
    #   1   | 0+1    <-     2+3    <-
    #   2   | 0+1+2+3    <-
    rounds = run(Topology.groups([[0, 1], [2, 3]]))
    assert rounds == [((1, 0), (3, 2)), ((2, 0),)]


def test_from_the_log_of_the_article():
    pairs = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1)]
    log = "\n".join(
        f"cannot enable peer access from device ordinal {i} to device ordinal {j}" for i, j in pairs
    )
    assert run(Topology.from_text(log)) == [((1, 0), (3, 2)), ((2, 0),)]


def test_three_devices_without_any_peer():
    assert run(Topology.groups([[0], [1], [2]])) == [((1, 0),), ((2, 0),)]


@pytest.mark.parametrize(("n", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (16, 4), (33, 6)])
def test_equal_links_halve_the_devices_in_each_round(n, rounds):
    assert len(run(Topology.uniform(n))) == rounds


def test_a_cube_mesh_needs_three_rounds_and_no_slow_link():
    rows = (
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    )
    topology = Topology.build([Device()] * 8, tuple(tuple(row.split()) for row in rows))
    rounds = run(topology)
    assert rounds == [((2, 1), (3, 0), (6, 5), (7, 4)), ((4, 0), (5, 1)), ((1, 0),)]
    assert messages(topology, rounds) == {"NV2": 6, "NV1": 1}


def test_a_chain_takes_its_detour_over_fast_links():
    near = {(0, 1), (1, 2), (2, 3)}
    kinds = tuple(
        tuple("X" if i == j else "PIX" if (i, j) in near or (j, i) in near else "SYS" for j in range(4))
        for i in range(4)
    )
    topology = Topology.build([Device()] * 4, kinds)
    assert messages(topology, run(topology)) == {"PIX": 3}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_bytes_between_islands_are_as_few_as_possible(sizes, random):
    names = list(range(sum(sizes)))
    random.shuffle(names)
    groups = [[names.pop() for _ in range(size)] for size in sizes]
    topology = Topology.groups(groups, near="PIX", far="NET")
    sent = messages(topology, run(topology, root=random.randrange(len(topology))))
    assert sent["NET"] == len(sizes) - 1  # every other island sends one message, whatever it holds


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_topology(data):
    n = data.draw(st.integers(1, 9))
    kinds = [["X"] * n for _ in range(n)]
    peers = [[True] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            if i < j:
                kinds[i][j] = kinds[j][i] = data.draw(st.sampled_from(KINDS))
            peers[i][j] = data.draw(st.booleans())
    topology = Topology.build([Device()] * n, kinds, peers)
    rounds = run(topology, root=data.draw(st.integers(0, n - 1)))
    # Without the links worse than a tier there are islands; joining them takes that many messages, less one.
    used = [max(topology.link(*p).tier, topology.link(*p[::-1]).tier) for pairs in rounds for p in pairs]
    for tier in {topology.link(i, j).tier for i in range(n) for j in range(n) if i != j}:
        assert sum(t > tier for t in used) == islands(topology, tier) - 1


def islands(topology, tier):
    """How many groups of devices are joined by links up to a tier."""
    home = list(range(len(topology)))
    for i in range(len(topology)):
        for j in range(len(topology)):
            if i != j and max(topology.link(i, j).tier, topology.link(j, i).tier) <= tier:
                home = [home[i] if h == home[j] else h for h in home]
    return len(set(home))


def test_a_root_that_does_not_exist():
    with pytest.raises(InvalidArgument, match="from 0 to 3"):
        reduction(Topology.uniform(4), root=4)


def test_machines_are_reduced_as_one_large_table_would_be():
    """Inside each machine first, then machine by machine, with as few messages over the network as can be."""
    box = Topology.groups([[0, 1], [2, 3]], near="NV2", far="NV1")
    box = Topology.build(box.devices, [[link.kind for link in row] for row in box.links])
    joined = Topology.machines(box, 4)
    rounds = list(reduction(joined))
    pairs = [pair for round_ in rounds for pair in round_]
    assert len(pairs) == len({source for source, _ in pairs}) == 15
    over = [pair for pair in pairs if joined.link(*pair).kind == "NET"]
    assert len(over) == 3
    table = Topology(joined.devices, [list(row) for row in joined.links])
    flat = [pair for round_ in reduction(table) for pair in round_]
    assert sorted(joined.link(*pair).kind for pair in pairs) == sorted(
        table.link(*pair).kind for pair in flat
    )
    assert len(rounds) == len(list(reduction(table)))


def test_any_device_of_any_machine_can_be_the_root():
    joined = Topology.machines(Topology.uniform(3, "NV2"), 3)
    for root in range(9):
        held = {i: {i} for i in range(9)}
        for round_ in reduction(joined, root):
            for source, target in round_:
                held[target] |= held.pop(source)
        assert held == {root: set(range(9))}
