import json

import pytest
from machines import machine

from colonnade.errors import ColonnadeError
from colonnade.hardware.cards import Machine
from colonnade.hardware.probes import measure
from colonnade.hardware.probes.watchdog import Answer


def test_measured_figures_take_the_place_of_published_ones():
    dgx1 = machine("dgx1")
    found = measure.Measured((1e13, 2e13), (3, 1), ((3, 1, 17e9, 5e-6), (1, 3, 16e9, 1e-6)))
    topology = measure.put_into(dgx1, found)
    assert [device.achieved for device in topology.devices[:4]] == [None, 2e13, None, 1e13]
    assert topology.link(3, 1).bandwidth == 17e9
    assert topology.link(3, 1).latency == 1.85e-6  # a small copy takes the time of a call
    assert topology.link(1, 3).latency == 1e-6
    assert topology.link(0, 2) == dgx1.topology.link(0, 2)


def test_a_machine_without_cards_has_its_cores_and_its_rate():
    here = Machine((), machine("article").topology.select([0]))
    topology = measure.put_into(here, measure.Measured((5e10,)))
    assert len(topology) == 1
    assert topology.devices[0].achieved == 5e10
    assert topology.devices[0].cores >= 1


def test_what_went_wrong_in_the_other_process_is_told(monkeypatch):
    monkeypatch.setattr(measure, "ask", lambda *_, **__: Answer(trouble="no answer within 300 s"))
    with pytest.raises(ColonnadeError, match="no answer within"):
        measure.measured(machine("dgx1"))


def test_what_the_other_process_says_is_put_in(monkeypatch):
    said = {"flops": [1e12] * 4, "cards": [0, 1, 2, 3], "copies": [[0, 1, 1e9, 1e-3]]}
    monkeypatch.setattr(measure, "ask", lambda *_, **__: Answer(said))
    assert measure.measured(machine("article")).link(0, 1).bandwidth == 1e9


def test_the_program_prints_the_rate_of_a_product(monkeypatch, capsys):
    monkeypatch.setattr(measure, "SIDE", 64)
    measure.main()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(said["flops"]) == 8
    assert min(said["flops"]) > 0
    assert said["copies"] == []


def test_the_program_copies_between_cards(monkeypatch, capsys):
    """What runs on cards, with two CPU devices in their place."""
    from colonnade.hardware import devices as hardware
    from colonnade.hardware.probes import copies

    cards = machine("article").cards[2:]
    monkeypatch.setattr(measure, "SIDE", 64)
    monkeypatch.setattr(copies, "LARGE", 2**16)
    monkeypatch.setattr(hardware, "visible_cards", lambda: cards)
    monkeypatch.setattr(hardware, "setup", lambda **_: ("/device:CPU:1", "/device:CPU:2"))
    measure.main()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["cards"] == [2, 3]
    assert [copy[:2] for copy in said["copies"]] == [[2, 3], [3, 2]]
    assert all(bandwidth > 0 and latency > 0 for _, _, bandwidth, latency in said["copies"])
