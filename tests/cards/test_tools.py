"""The tools tell of cards what is true: where an op ran, whether a copy arrived, what the doctor says."""

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake import copies

import colonnade as cn
from colonnade.fleet import launch, lease
from colonnade.hardware import cards, gpu
from colonnade.hardware.doctors import doctor
from colonnade.hardware.probes import collective, repeated, verdicts, watchdog
from colonnade.hardware.probes import copies as copying
from colonnade.hardware.probes.probe import probe
from colonnade.reason.transfers.rings import ring_bandwidth
from colonnade.run.data.feed import feed
from colonnade.run.selftest import movement, selftest, summing
from colonnade.run.variables.homes import MODES

FOLDER = Path(__file__).parent
CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))


def test_placement_tells_the_card_of_every_op():
    def double(x):
        with tf.device("/device:GPU:3"):
            return tf.matmul(x, x)

    report = cn.placement(double, tf.ones([4, 4]))
    (row,) = [row for row in report.ops if row.op == "MatMul"]
    assert (row.actual, row.calls) == ("/device:GPU:3", None)


def test_a_profile_says_that_it_lacks_what_cards_compute():
    """If there are events of a card one day, `docs/cards.md` may send people to profiles again."""
    w = tf.Variable(tf.ones([16, 1]))
    trainer = cn.Trainer(lambda x: tf.squeeze(x @ w, 1) ** 2, keras.optimizers.SGD(0.01), devices=CARDS[:2])
    with pytest.warns(UserWarning, match="lacks what cards compute"):
        timeline = trainer.profile((np.ones([64, 16], "float32"),), steps=2, batch_size=32)
    assert not [event for event in timeline.events if event.kind in ("forward", "backward")]


@pytest.mark.filterwarnings("error:.*lacks what cards compute")
def test_a_profile_of_what_no_card_computes_does_not_speak_of_cards():
    w = tf.Variable(tf.ones([16, 1]))
    trainer = cn.Trainer(
        lambda x: tf.squeeze(x @ w, 1) ** 2, keras.optimizers.SGD(0.01), devices=["/device:CPU:0"]
    )
    timeline = trainer.profile((np.ones([64, 16], "float32"),), steps=2, batch_size=32)
    assert timeline.events


def test_a_copy_between_cards_arrives_where_it_should():
    copies()
    arrival = copying.send(copying.to_target, CARDS[1], CARDS[5], 2**20)
    assert (arrival.intact, arrival.read_on) == (True, "GPU:5")
    # Every round of the loop is a copy: of the short calls, of the long ones; and those that are summed up.
    number, size = copies()["GPU:1", "GPU:5"]
    rounds = repeated.TIMES * (2 * repeated.FEW + copying.ROUNDS)
    assert number >= rounds + 1
    assert rounds * 2**20 <= size <= (rounds + 3) * 2**20


def test_arrays_stay_on_the_host():
    data = np.ones([1000, 100], "float32")
    copies()
    for _ in feed((data, data), 100, "fit()"):
        pass
    assert sum(size for _, size in copies().values()) == 0


@pytest.fixture
def library(monkeypatch):
    """Their library is asked in a process of its own, which has none of these cards: here it is this one."""

    def asked(count, seconds, cards=()):
        sums_of = collective.all_reduce(CARDS[:count])
        said = []
        for size in collective.SIZES:
            tensors = [tf.constant(collective.numbers(i, size)) for i in range(count)]
            sums = tf.function(lambda *held: sums_of(held), autograph=False)(*tensors)
            checksums = [collective.checksum(each.numpy()) for each in sums]
            said.append({"size": size, "sums": checksums, "seconds": 1e-3})
        return watchdog.Answer(said), "2.21.5"

    monkeypatch.setattr(collective, "SIZES", (1_000, 10_000))
    monkeypatch.setattr(summing, "ON_CARDS", 10_000)
    monkeypatch.setattr(copying, "LARGE", 2**16)
    monkeypatch.setattr(collective, "ask_cards", asked)


# The driver is asked what a process has taken, and there is none.
ELSEWHERE = "memory limit and NVML"
# test_training.py trains with each of them on four and eight.
OF_MODES = tuple(f"variables: {mode}" for mode in MODES)


@pytest.mark.parametrize(("number", "left_out"), [(2, ()), (4, OF_MODES), (8, OF_MODES)])
def test_the_selftest_passes_and_remembers_how_fast_sums_are(number, left_out, library):
    checks = [check for check in selftest.CHECKS if check.name not in (ELSEWHERE, *left_out)]
    assert len(checks) == len(selftest.CHECKS) - 1 - len(left_out)
    results = list(selftest.examine(CARDS[:number], checks))
    assert [(r.check, r.state, r.found) for r in results if r.state != "passed"] == []
    sums = next(result for result in results if result.check == "sums")
    assert set(sums.figures) >= {"tree", "ring", "nccl"}
    links = ring_bandwidth(cards.detect().topology.select(range(number)), tuple(range(number)))
    assert sums.found.endswith(f"; the links have {links / 1e9:g}")
    assert set(verdicts.recall(CARDS[:number])) == {"tree", "ring", "nccl"}
    verdicts.path().unlink()


@pytest.fixture
def children(monkeypatch):
    """Processes that are started from here have these cards too, and a library that says it is NCCL."""
    paths = [str(FOLDER / "children"), str(FOLDER), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def test_sums_of_the_library_come_from_a_process_of_its_own(children):
    answer, version = collective.ask_cards(2, 120.0, cards.detect().cards[:2])
    assert (answer.trouble, version) == ("", "0.0.0+cuda12.5")
    verdict = movement.judge_collective(CARDS[:2], answer.said, version)
    assert verdict.passed, verdict.found


def test_the_doctor_asks_a_tensorflow_that_can_use_all_cards(children, monkeypatch):
    """Of those that it is shown: between eight there are too many copies to measure."""
    monkeypatch.setenv("FAKE_CARDS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    findings = {finding.check: finding for finding in doctor.examine(cards.detect(), probe())}
    assert [f for f in findings.values() if f.state == "blocks"] == []
    assert "it can use 2" in findings["driver and CUDA"].found
    assert findings["architecture"].state == "good"
    assert "measured: all copies arrive" in findings["peer access"].found
    assert "all cards let several processes in" in findings["compute mode"].found


@pytest.mark.parametrize("number", [2, 4, 5])
def test_cards_are_leased_by_their_names_and_seen_under_them(tmp_path, number):
    """Those and all others: no card is in both."""
    rest = len(CARDS) - number
    with lease.ask(launch.pool_of(rest, None), rest, directory=tmp_path) as first:
        first.wait()
        with lease.ask(launch.pool_of(number, None), number, directory=tmp_path) as second:
            second.wait()
            taken = [*first.claim.slots, *second.claim.slots]
            assert sorted(taken) == sorted(card.uuid for card in cards.detect().cards)
            inside = launch.environment({}, second, virtual=False)
            seen = gpu.visible(cards.detect().cards, inside)
            assert {card.uuid for card in seen} == set(second.claim.slots)
