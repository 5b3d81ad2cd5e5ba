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
