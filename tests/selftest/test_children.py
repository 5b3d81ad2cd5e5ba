"""Who is asked about cards, about which, and when: before this process has them, if they let in only one."""

from dataclasses import replace

import pynvml
import pytest
from examined import GIB

from colonnade.hardware import gpu
from colonnade.hardware.cards import Card
from colonnade.hardware.probes import collective, watchdog
from colonnade.run.selftest import children

CARDS = tuple(Card(i, f"GPU-{i}", f"00000000:0{i}:00.0", "a card", 16 * GIB, free=15 * GIB) for i in range(4))


def in_mode(mode, cards=CARDS):
    return tuple(replace(card, mode=mode) for card in cards)


@pytest.fixture
def asked(monkeypatch):
    """The cards that each process was shown."""
    seen = []

    def ask(module, *arguments, seconds, environment):
        seen.append((module.rpartition(".")[2], *arguments, environment[gpu.VISIBLE]))
        return watchdog.Answer({"number": len(seen)})

    monkeypatch.setattr(children, "ask", ask)
    monkeypatch.setattr(collective, "ask", ask)
    monkeypatch.setattr(children, "_sums", {})
    monkeypatch.setattr(children, "_limits", {})
    return seen


def test_a_process_is_shown_the_cards_of_the_devices_and_no_others(asked):
    children.sums(CARDS[2:])
    children.memory(CARDS[3])
    assert asked == [("collective", "2", "GPU-2,GPU-3"), ("limit", "1024", "GPU-3")]


def test_cards_for_one_process_are_asked_before_this_one_takes_them(asked):
    cards = in_mode(pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert children.sums(cards) is None
    assert children.memory(cards[0]) is None
    children.ask_first(cards)
    assert len(asked) == 2
    assert children.sums(cards)[0].said == {"number": 1}
    assert children.memory(cards[0]).said == {"number": 2}
    assert len(asked) == 2  # nobody was asked again


@pytest.mark.parametrize("mode", ["DEFAULT", "PROHIBITED"])
def test_others_are_asked_when_it_is_their_turn_or_not_at_all(asked, mode):
    children.ask_first(in_mode(getattr(pynvml, f"NVML_COMPUTEMODE_{mode}")))
    assert asked == []


def test_no_limit_is_tried_on_a_card_that_cannot_tell(asked):
    for change in ({"mig": True}, {"memory": None}, {"free": GIB // 8}):
        assert not children.can_limit(replace(CARDS[0], **change))
    assert children.can_limit(CARDS[0])
