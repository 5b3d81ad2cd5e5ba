"""What a self-test found is found again for the same cards and versions, and for no others."""

import json

import pytest

from colonnade.hardware import cards as nvml
from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import Card, Machine
from colonnade.hardware.probes import verdicts

DEVICES = ("a", "b")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = {"driver": "550.54", "uuids": {"a": "1", "b": "2", "c": "3"}}
    monkeypatch.setattr(nvml, "detect", lambda: Machine((), None, driver=here["driver"]))
    monkeypatch.setattr(
        hardware, "cards_of", lambda devices: [Card(0, here["uuids"][d], "", "H", 1) for d in devices]
    )
    return here


def test_it_holds_for_these_cards_driver_and_versions(machine, monkeypatch):
    assert verdicts.recall(DEVICES) == {}
    verdicts.remember(DEVICES, {"ring": 2.0})
    verdicts.remember(("a", "c"), {"tree": 1.0})
    assert verdicts.recall(DEVICES) == {"ring": 2.0}
    assert verdicts.recall(("b", "a")) == {}
    monkeypatch.setattr(verdicts, "__version__", "another")
    assert verdicts.recall(DEVICES) == {}
    monkeypatch.undo()


def test_another_driver_or_another_card_is_not_the_same(machine):
    verdicts.remember(DEVICES, {"ring": 2.0})
    machine["driver"] = "560.1"
    assert verdicts.recall(DEVICES) == {}
    machine["driver"] = "550.54"
    machine["uuids"]["b"] = "new"
    assert verdicts.recall(DEVICES) == {}


@pytest.mark.parametrize("text", ["", "[", "[]"])
def test_a_file_that_is_broken_holds_nothing_and_is_written_anew(text):
    verdicts.path().parent.mkdir(parents=True)
    verdicts.path().write_text(text)
    assert verdicts.recall(DEVICES) == {}
    place = verdicts.remember(DEVICES, {"ring": 2.0})
    assert len(json.loads(place.read_text())) == 1
    assert [p.name for p in place.parent.iterdir()] == [place.name]


def test_what_cannot_be_written_is_not_remembered_and_nothing_fails(tmp_path, monkeypatch):
    """Root may write anywhere, so it is a file where a folder should be; and a disk that is full."""
    (tmp_path / "colonnade").write_text("no folder")
    with pytest.warns(UserWarning, match="not remembered: .*XDG_CACHE_HOME"):
        assert verdicts.remember(DEVICES, {"ring": 2.0}) is None
    assert verdicts.recall(DEVICES) == {}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "full"))

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(verdicts.os, "replace", full)
    with pytest.warns(UserWarning, match="not remembered: .*No space left"):
        verdicts.remember(DEVICES, {"ring": 2.0})
    assert not list(verdicts.path().parent.iterdir())


def test_a_user_without_a_home_has_no_verdict(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(verdicts.Path, "home", homeless)
    assert verdicts.recall(DEVICES) == {}
    with pytest.warns(UserWarning, match="not remembered: Could not determine home"):
        assert verdicts.remember(DEVICES, {"ring": 2.0}) is None
