"""The bundle of a self-test, which may be attached to a public report."""

import json
import re
from dataclasses import replace

import tensorflow as tf
from examined import DEVICES, private

from colonnade.hardware import devices as hardware
from colonnade.run.selftest import report as reports
from colonnade.run.selftest import selftest
from colonnade.run.selftest.verdict import SelfCheck


def test_the_bundle_of_a_failure_tells_nothing_private(monkeypatch):
    """Whatever an error says stays on the screen; there is no pattern that would find every secret."""
    secret = "the password of Dr. Ada, at host-17"

    def broken(devices):
        raise OSError(secret)

    (result,) = selftest.examine(DEVICES, [SelfCheck("a", "b", "c", broken)])
    assert result.words == secret
    monkeypatch.setattr(tf, "__version__", "2.21.0+ada.host17")
    plain = reports.bundle(DEVICES, [replace(result, figures={**result.figures, "GB/s": float("inf")})])
    (told,) = plain["results"]
    assert {name: told[name] for name in ("found", "state")} == {"found": "OSError", "state": "failed"}
    assert told["figures"] == {"where": result.figures["where"], "GB/s": "inf"}
    assert set(told) == set(reports.FIELDS)
    assert plain["versions"]["tensorflow"] == "2.21.0"
    assert re.findall(r"\bAda\b|host-?17|password", json.dumps(plain, allow_nan=False), re.I) == []


def test_the_bundle_holds_the_cards_without_their_uuids(monkeypatch):
    from colonnade.hardware.cards import detect
    from colonnade.hardware.recorded import recorded

    nvml = recorded("dgx1")
    machine = detect(nvml, nvml.owner)
    names = tuple(f"card {i}" for i in range(8))
    monkeypatch.setattr(reports, "detect", lambda: machine)
    monkeypatch.setattr(hardware, "topology", lambda: machine.topology)
    monkeypatch.setattr(hardware, "names", lambda: names)
    plain = reports.bundle(names[:4], [])
    text = json.dumps(plain)
    assert private(text) == []
    assert "ada" not in re.findall(r"\w+", text)
    assert [device["name"] for device in plain["topology"]["devices"]] == ["Tesla V100-SXM2-16GB"] * 4
    assert plain["versions"]["driver"] == machine.driver
