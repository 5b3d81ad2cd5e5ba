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


def of(capability):
    return tuple(replace(card, capability=capability) for card in CARDS)


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


@pytest.mark.parametrize(
    ("capability", "waits"), [((8, 6), 120), ((9, 0), 120), ((12, 0), 1920), ((5, 2), 120), (None, 120)]
)
def test_cards_without_machine_code_have_time_to_compile_it(monkeypatch, capability, waits):
    """Whoever compiles for half an hour has not failed."""
    info = {"cuda_compute_capabilities": ["sm_60", "sm_80", "compute_90"]}
    monkeypatch.setattr(children.tf.sysconfig, "get_build_info", lambda: info)
    seconds = []
    monkeypatch.setattr(children, "ask", lambda *_, **options: seconds.append(options["seconds"]))
    monkeypatch.setattr(collective, "ask_cards", lambda _, patience, cards: seconds.append(patience))
    children.memory(of(capability)[0])
    children.sums(of(capability))
    assert seconds == [waits, waits]


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
