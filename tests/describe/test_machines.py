import pytest

from colonnade.describe.machines import adapter_bandwidth
from colonnade.describe.topology import Topology
from colonnade.errors import InvalidArgument


def test_links_inside_a_machine_are_its_own_and_between_machines_the_network():
    pair, four = Topology.uniform(2, "NV4"), Topology.uniform(4, "PIX")
    joined = Topology.machines([pair, four], network="200Gb", adapters=2)
    assert len(joined) == 6
    assert joined.link(0, 1).kind == "NV4"
    assert joined.link(2, 5).kind == "PIX"
    assert joined.link(1, 2).kind == joined.link(5, 0).kind == "NET"
    assert (joined.link(1, 2).bandwidth, joined.adapters) == (24e9, 2)  # a copy takes one adapter
    assert [joined.machine_of(i) for i in range(6)] == [0, 0, 1, 1, 1, 1]
    assert joined.boxes == (pair, four)


def test_machines_go_through_json_and_equal_ones_are_written_once():
    joined = Topology.machines(Topology.uniform(3, "NV2"), 50, latency=1e-3)
    assert Topology.from_json(joined.to_json()) == joined
    assert hash(Topology.from_json(joined.to_json())) == hash(joined)
    assert len(joined.to_json()) < 2000


def test_a_part_of_machines_has_the_links_of_the_whole():
    joined = Topology.machines(Topology.groups([[0, 1], [2, 3]]), 3)
    chosen = [1, 2, 3, 5, 8, 11]
    part = joined.select(chosen)
    assert part.network == joined.network
    for a, i in enumerate(chosen):
        for b, j in enumerate(chosen):
            assert part.links[a][b] == joined.links[i][j]
    mixed = joined.select([0, 4, 1])  # not machine by machine: a table of its own
    assert [[link.kind for link in row] for row in mixed.links] == [
        ["X", "NET", "PHB"],
        ["NET", "X", "NET"],
        ["PHB", "NET", "X"],
    ]


def test_ten_thousand_devices_need_no_table():
    joined = Topology.machines(Topology.uniform(8, "NV18"), 1250)
    assert joined.links[9_999][0].kind == "NET"
    assert [link.kind for link in joined.links[9_999][9_998:]] == ["NV18", "X"]


@pytest.mark.parametrize("speed", ["", "100", "fast", "-1Gb", "0Gb", 0, -5.0, float("inf"), True, None])
def test_a_rate_that_is_none_is_refused(speed):
    with pytest.raises(InvalidArgument, match="network"):
        adapter_bandwidth(speed)


@pytest.mark.parametrize(
    ("speed", "bytes_per_second"), [("100Gbit", 12e9), ("1 Tb/s", 120e9), ("12.5GB", 12e9)]
)
def test_rates_of_adapters(speed, bytes_per_second):
    assert adapter_bandwidth(speed) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(
    "arguments",
    [
        {"box": Topology.uniform(2)},
        {"box": Topology.uniform(2), "count": 0},
        {"box": []},
        {"box": "dgx1", "count": 2},
        {"box": Topology.uniform(2), "count": 2, "adapters": 0},
        {"box": Topology.machines(Topology.uniform(2), 2), "count": 2},
    ],
)
def test_machines_that_cannot_be_joined(arguments):
    with pytest.raises(InvalidArgument, match=r"Topology\.machines"):
        Topology.machines(**arguments)


def test_adapters_of_a_matrix_are_used():
    text = "        A0   A1   mlx5_0 mlx5_1 CPU Affinity\nA0  X  PIX PHB PHB 0-7\nA1  PIX X  PHB PHB 0-7\n"
    box = Topology.from_text(text)
    assert box.adapters == 2
    two = Topology.machines(box, 2)
    assert (two.network.bandwidth, two.adapters) == (12e9, 2)
