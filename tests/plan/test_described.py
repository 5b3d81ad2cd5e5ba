import pytest
from workloads import cards

from colonnade.errors import InvalidArgument
from colonnade.run.plan import planning
from colonnade.run.plan.described import described, kept


def test_a_recorded_machine_and_several_of_them():
    assert len(described("dgx1", None, "100Gb", None, None)) == 8
    joined = described("dgx1", 4, "200Gb", None, None)
    assert len(joined) == 32
    assert joined.network.bandwidth == 24e9


def test_so_many_devices_of_a_machine_are_the_best_connected():
    assert len(described("dgx1", None, "100Gb", None, 4)) == 4


def test_a_machine_from_a_file():
    box = cards(3)
    assert described(None, None, "100Gb", box.to_json(), None) == box
    matrix = "     A0   A1\nA0   X   PIX\nA1  PIX   X\n"
    assert described(None, None, "100Gb", matrix, None).link(0, 1).kind == "PIX"


def test_this_machine_is_left_to_whoever_starts_tensorflow():
    assert described(None, None, "100Gb", None, 4) is None
    assert len(described(None, 3, "100Gb", None, 2)) == 6


def test_two_machines_are_one_too_many():
    with pytest.raises(InvalidArgument, match="two machines"):
        described("dgx1", None, "100Gb", "{}", None)


def test_unknown_machines_and_networks():
    with pytest.raises(InvalidArgument, match="no such machine"):
        described("dgx9", None, "100Gb", None, None)
    with pytest.raises(InvalidArgument, match="network"):
        described("dgx1", 2, "quick", None, None)


@pytest.mark.parametrize("setting", ["stage", "colour=red", "=1", "batch=8", "advice=go"])
def test_what_cannot_be_kept(setting):
    with pytest.raises(InvalidArgument, match="--keep"):
        kept([setting])


def test_each_part_is_kept_once():
    assert kept(['sharded=["slots","parameters"]']) == {"sharded": ["slots", "parameters"]}
    with pytest.raises(InvalidArgument, match="each name once"):
        kept(["stage=2", "stage=4"])


def test_a_machine_is_not_described_with_millions_of_links():
    assert len(planning.here(512)) == 512
    assert len(planning.here(60_000)) < 60_000
