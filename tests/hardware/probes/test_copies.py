import json

import pytest
from machines import machine

from colonnade.hardware.probes import copies
from colonnade.hardware.probes.probe import Copy


@pytest.mark.long
def test_the_program_that_copies(monkeypatch, capsys):
    """What runs on cards, with two CPU devices in their place."""
    cards = machine("article").cards[2:]
    monkeypatch.setattr(copies.hardware, "visible_cards", lambda: cards)
    monkeypatch.setattr(copies.hardware, "setup", lambda growth: ("/device:CPU:1", "/device:CPU:2"))
    monkeypatch.setattr(copies, "LARGE", 2**16)
    copies.main()
    found = [Copy(**each) for each in json.loads(capsys.readouterr().out)]
    assert [(copy.source, copy.target, copy.arrived) for copy in found] == [(2, 3, True), (3, 2, True)]
    assert all(copy.bandwidth > 0 for copy in found)


def test_a_copy_that_does_not_arrive_every_time_is_found(monkeypatch):
    """The witness of many copies: what is right at first, and then holds other numbers."""
    turns = []

    def sometimes(held, source, target):
        turns.append(True)
        moved = copies.to_target(held, source, target)
        return moved if len(turns) == 1 else moved + 1.0  # traced once for the sums, once for the loop

    devices = "/device:CPU:1", "/device:CPU:2"
    assert copies.send(copies.to_target, *devices, 2**14).intact
    assert not copies.send(sometimes, *devices, 2**14).intact
