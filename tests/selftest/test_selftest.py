"""The self-test passes here, on few devices too; it takes what is there, and changes no setting for good."""

import json

import pytest
import tensorflow as tf
from examined import CHECKS, DEVICES, private
from families import long

from colonnade.hardware import devices as hardware
from colonnade.run.selftest import children, selftest
from colonnade.run.selftest import report as reports
from colonnade.run.selftest.verdict import SelfCheck, Verdict

CHEAP = ("set-up", "split", "gradients", "placed adds", "copies")


@pytest.mark.long
def test_passes_on_virtual_devices():
    results = {result.check: result for result in selftest.examine(DEVICES)}
    absent = {"placed adds and NCCL", "memory limit and NVML"}
    assert {name for name, result in results.items() if result.state == "not applicable"} == absent
    assert [result for result in results.values() if result.state == "failed"] == []
    assert all(result.compares and result.tolerance and result.found for result in results.values())
    assert "cards" in results["placed adds and NCCL"].found
    assert "no card" in results["memory limit and NVML"].found
    assert "share one memory" in results["copies"].found


@pytest.mark.parametrize("count", [1, *long(2)])
def test_few_devices_will_do(count):
    results = {r.check: r.state for r in selftest.examine(DEVICES[:count], [CHECKS[name] for name in CHEAP])}
    assert results.pop("copies") == ("passed" if count > 1 else "not applicable")
    assert set(results.values()) == {"passed"}


def test_precision_of_products_is_put_back():
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    seen = []

    def look(devices):
        seen.append(tf.config.experimental.tensor_float_32_execution_enabled())
        return Verdict(True, "")

    list(selftest.examine(DEVICES, [SelfCheck("look", "", "", look)]))
    assert seen == [False]
    assert tf.config.experimental.tensor_float_32_execution_enabled() == before


def test_devices_that_are_started_are_taken():
    assert selftest.start(3) == DEVICES
    with pytest.raises(ValueError, match="devices=99"):
        selftest.start(99)


@pytest.mark.parametrize(
    ("cards", "asked"),
    [
        (0, {"virtual": 4}),
        (1, {"virtual": 2, "growth": True}),
        (4, {"devices": None, "growth": True}),
    ],
)
def test_what_is_set_up(monkeypatch, cards, asked):
    said = []
    monkeypatch.setattr(hardware, "started", lambda: False)
    monkeypatch.setattr(hardware, "visible_cards", lambda: ("a card",) * cards)
    monkeypatch.setattr(hardware, "setup", lambda **settings: said.append(settings))
    first = []
    monkeypatch.setattr(children, "ask_first", lambda shown: first.append((len(shown), len(said))))
    selftest.start()
    assert first == [(cards, 0)]  # before TensorFlow takes them
    assert said == [asked]


def test_the_bundle_tells_nothing_private():
    results = selftest.examine(DEVICES, [CHECKS[name] for name in CHEAP])
    plain = reports.bundle(DEVICES, tuple(results))
    assert private(json.dumps(plain, indent=1)) == []
    assert plain["versions"]["tensorflow"] == tf.__version__
    assert [result["check"] for result in plain["results"]] == list(CHEAP)
    assert len(plain["topology"]["links"]) == len(plain["devices"]) == 3
