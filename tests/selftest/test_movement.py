"""Comparisons that add, copy and allocate fail when something is broken on purpose.

Placed adds are held against a collective by the code that cards run, with TensorFlow's own ring in NCCL's
place.
"""

import json
from dataclasses import replace

import pynvml
import pytest
import tensorflow as tf
from examined import CHECKS, DEVICES, GIB, fails, outcome

from colonnade.describe.topology import Topology
from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import Card
from colonnade.hardware.probes import collective, watchdog
from colonnade.run.move.reduce import reduce, spread
from colonnade.run.selftest import children, movement, selftest
from colonnade.run.selftest import report as reports


def test_placed_adds_fail_for_a_wrong_sum(monkeypatch):
    def broken(gradients, devices, order, **options):
        return reduce(gradients, devices, order[:-1], **options)

    monkeypatch.setattr(movement, "reduce", broken)
    assert "star" in fails("placed adds")


def test_copies_fail_for_one_bit_between_one_pair(monkeypatch):
    def broken(values, devices, order):
        held = spread(values, devices, order)
        if devices == [DEVICES[2], DEVICES[1]]:
            bits = tf.bitcast(held[1][0], tf.int32)
            flip = tf.one_hot(1000, tf.size(bits), on_value=2**12, dtype=tf.int32)
            held[1] = [tf.bitcast(tf.bitwise.bitwise_xor(bits, flip), tf.float32)]
        return held

    monkeypatch.setattr(movement, "spread", broken)
    assert fails("copies").endswith("did not arrive: CPU:2 to CPU:1 (other bytes)")


def test_copies_fail_if_another_device_reads_them(monkeypatch):
    """A result is brought to the caller's device, so it would tell nothing; the placed graph does."""
    monkeypatch.setattr(hardware, "names", lambda: (*DEVICES, "/device:CPU:99"))
    (result,) = selftest.examine((DEVICES[1], "/device:CPU:99"), [CHECKS["copies"]])
    assert result.state == "failed"
    assert "CPU:1 to CPU:99 (read on CPU:0)" in result.found


def test_bandwidth_is_measured_between_cards_and_put_beside_the_link(monkeypatch):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "topology", lambda: Topology.groups([[0, 1], [2]], near="PIX"))
    monkeypatch.setattr(movement.sending, "LARGE", 2**12)
    result = outcome("copies")
    figures = result.figures["bandwidth"]
    assert len(figures) == 6
    assert all(figure["GB/s"] >= 0 for figure in figures.values())
    assert figures["CPU:1 to CPU:0"] == {**figures["CPU:1 to CPU:0"], "link": "PIX", "published GB/s": 12.0}
    assert figures["CPU:2 to CPU:0"]["link"] == "SYS, no peer access"
    # The parts of one card have an unlimited link, and JSON has no word for that.
    monkeypatch.setattr(hardware, "topology", lambda: Topology.uniform(3))
    assert json.dumps(reports.bundle(DEVICES, [outcome("copies")]), allow_nan=False)


@pytest.fixture(scope="module")
def ring():
    hidden = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    answer = watchdog.ask(collective.__name__, "3", seconds=120, environment=hidden)
    assert answer.trouble == ""
    return answer.said


@pytest.mark.long
def test_placed_adds_equal_a_collective(ring):
    verdict = movement.judge_collective(DEVICES, ring, "2.21.5")
    assert verdict.passed
    assert verdict.figures["version"] == "2.21.5"
    assert [each["size"] for each in ring] == list(collective.SIZES)


@pytest.mark.long
def test_placed_adds_and_the_collective_fail(ring, monkeypatch):
    other = [{**each, "sums": [*each["sums"][:-1], 1]} for each in ring]
    assert "different sums of 1000, 4000000 numbers" in movement.judge_collective(DEVICES, other, "2").found
    assert "did not go through" in movement.judge_collective(DEVICES, ring, "").found
    for few in ([], ring[:1], ring[::-1]):
        assert movement.judge_collective(DEVICES, few, "2").passed is False

    def broken(gradients, devices, order):
        return reduce(gradients[:-1], devices[:-1], ())

    monkeypatch.setattr(movement, "reduce", broken)
    assert movement.judge_collective(DEVICES, ring, "2").passed is False


@pytest.mark.long
def test_a_collective_is_asked_for_on_cards(monkeypatch, ring):
    lines = ("NCCL version 2.21.5+cuda12.5", "[]")
    monkeypatch.setattr(collective, "ask", lambda *_, **__: watchdog.Answer(ring, printed=lines))
    assert collective.ask_cards(3, 1)[1] == "2.21.5+cuda12.5"
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "visible_cards", lambda: SEVERAL)
    result = outcome("placed adds and NCCL")
    assert (result.state, result.figures["version"]) == ("passed", "2.21.5+cuda12.5")
    monkeypatch.setattr(collective, "ask", lambda *_, **__: watchdog.Answer(ring))
    fails("placed adds and NCCL")
    trouble = watchdog.Answer(trouble="exit code 1", words="no such card", printed=lines)
    monkeypatch.setattr(collective, "ask", lambda *_, **__: trouble)
    assert fails("placed adds and NCCL") == "exit code 1 no such card"


CARD = Card(0, "GPU-1", "00000000:01:00.0", "a card", 16 * GIB, free=15 * GIB)
SEVERAL = tuple(replace(CARD, index=i, uuid=f"GPU-{i}") for i in range(3))


@pytest.fixture
def answers(monkeypatch):
    """Gives the answer of the process that tries a limit on a card; may give another card too."""

    def give(answer, card=CARD):
        monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
        monkeypatch.setattr(hardware, "visible_cards", lambda: (card,))
        monkeypatch.setattr(children, "ask", lambda *_, **__: answer)

    return give


@pytest.mark.parametrize(
    ("used", "refused", "state", "words"),
    [
        (1300, True, "passed", "limit 1024 MiB, taken 1300 MiB, more was refused"),
        (1300, False, "failed", "limit 1024 MiB, taken 1300 MiB, more was granted"),
        (13000, True, "failed", "limit 1024 MiB, taken 13000 MiB, more was refused"),
    ],
)
def test_the_memory_limit_is_judged_by_what_was_measured(answers, used, refused, state, words):
    measured = {"limit": 1024, "used": used, "refused": refused}
    answers(watchdog.Answer(measured))
    result = outcome("memory limit and NVML")
    assert (result.state, result.found, result.figures) == (state, words, measured)


def test_the_memory_limit_without_an_answer(answers):
    answers(watchdog.Answer(trouble="died of SIGSEGV"))
    assert fails("memory limit and NVML") == "died of SIGSEGV"


@pytest.mark.parametrize("changes", [{"mig": True}, {"free": GIB // 8}, {"memory": None}])
def test_the_memory_limit_of_a_card_that_cannot_tell_does_not_apply(answers, changes):
    answers(watchdog.Answer(trouble="it was asked"), replace(CARD, **changes))
    assert outcome("memory limit and NVML").state == "not applicable"


def test_cards_that_let_one_process_in_are_not_asked_for_by_a_second(monkeypatch):
    alone = [replace(card, mode=pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS) for card in SEVERAL]
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "visible_cards", lambda: tuple(alone))
    for name in ("placed adds and NCCL", "memory limit and NVML"):
        result = outcome(name)
        assert (result.state, result.found) == ("not applicable", movement.ALONE)
    assert outcome("set-up").found.endswith("; in exclusive-process mode")
