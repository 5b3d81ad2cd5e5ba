"""The check of the ways of summing passes where they are right, else fails, and is remembered of cards."""

import pytest
from examined import CHECKS, DEVICES, fails, outcome

from colonnade.describe.topology import Topology
from colonnade.hardware import devices as hardware
from colonnade.hardware.probes import collective, verdicts, watchdog
from colonnade.run.move.ring import ring_sums
from colonnade.run.selftest import selftest, summing
from colonnade.run.selftest.verdict import SelfCheck, Verdict

NAME = "sums"


def test_on_virtual_devices_sums_are_right_and_nothing_is_timed():
    result = outcome(NAME)
    assert result.state == "passed"
    assert result.found == "tree, ring; no bandwidth: these share one memory"


def test_a_wrong_sum_is_found(monkeypatch):
    monkeypatch.setattr(summing, "ring_sums", lambda rows, *a, **k: ring_sums([rows[0]] * 3, *a, **k))
    assert "wrong: ring" in fails(NAME)


@pytest.fixture
def cards(monkeypatch, tmp_path):
    """These devices are three cards, and their library answers as it is told to."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "topology", lambda: Topology.uniform(3, "PIX"))
    monkeypatch.setattr(summing, "ON_CARDS", 2000)
    monkeypatch.setattr(verdicts, "_key", lambda devices: "these cards")
    monkeypatch.setattr(collective, "refusals", lambda devices: ())

    def answering(sums, version="2.21.5", short=None):
        said = [
            {"size": 1000, "sums": right(1000) if short is None else short, "seconds": 1e-6},
            {"size": 2000, "sums": sums, "seconds": 1e-6},
        ]
        monkeypatch.setattr(collective, "ask_cards", lambda *_: (watchdog.Answer(said), version))

    return answering


def right(size=2000):
    return [collective.checksum(sum(collective.numbers(i, size) for i in range(3)))] * 3


def test_what_passed_on_cards_is_told_and_remembered(cards):
    cards(right())
    result = outcome(NAME)
    assert result.state == "passed"
    assert "the links have 12" in result.found
    # 2 (n - 1) / n of 8 000 bytes in a microsecond
    assert result.figures["nccl"]["GB/s per card"] == pytest.approx(10.67)
    assert set(verdicts.recall(DEVICES)) == {"tree", "ring", "nccl"}


def test_where_the_cache_cannot_be_written_all_results_are_there(cards, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cards(right())
    with pytest.warns(UserWarning, match="not remembered"):
        results = list(selftest.examine(DEVICES, [CHECKS[NAME]]))
    assert [result.state for result in results] == ["passed"]


def test_a_library_that_is_wrong_or_was_not_asked_is_no_choice_later(cards):
    for sums, version, short in (
        (right()[:2], "2.21.5", None),
        ([1, 2, 3], "2.21.5", None),
        (right(), "2.21.5", [1, 2, 3]),  # of a short message alone, for which it takes another way
        (right(), "2.21.5", []),
        (right(), "", None),
    ):
        cards(right())
        assert outcome(NAME).state == "passed"
        cards(sums, version, short)
        assert ("wrong: nccl" if version else "no answer of nccl: the sums did not go") in fails(NAME)
        assert set(verdicts.recall(DEVICES)) == {"tree", "ring"}


def test_a_library_that_does_not_answer_is_not_called_wrong(cards, monkeypatch):
    silent = watchdog.Answer(trouble="no end after 60 s")
    monkeypatch.setattr(collective, "ask_cards", lambda *_: (silent, ""))
    found = fails(NAME)
    assert "no answer of nccl: no end after 60 s" in found
    assert "wrong" not in found


def test_a_library_is_no_choice_where_any_check_has_failed(cards):
    """It may be the copies between cards that are broken: "auto" then stays with what needs no trust."""
    cards(right())
    broken = SelfCheck("copies", "", "", lambda devices: Verdict(False, "other bytes"))
    list(selftest.examine(DEVICES, [CHECKS[NAME], broken]))
    assert set(verdicts.recall(DEVICES)) == {"tree", "ring"}
    list(selftest.examine(DEVICES, [CHECKS[NAME]]))
    assert set(verdicts.recall(DEVICES)) == {"tree", "ring", "nccl"}
    for _ in selftest.examine(DEVICES, [CHECKS[NAME], broken]):
        break  # cut off: what was found before holds
    assert set(verdicts.recall(DEVICES)) == {"tree", "ring", "nccl"}
