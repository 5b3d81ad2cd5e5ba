"""The tools tell of cards what is true: where an op ran, whether a copy arrived, what the doctor says."""

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
from colonnade.reason.transfers.rings import ring_bandwidth
from colonnade.run.data.feed import feed
from colonnade.run.selftest import selftest, summing
from colonnade.run.variables.homes import MODES

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
        for size in (1_000, summing.ON_CARDS):
            tensors = [tf.constant(collective.numbers(i, size)) for i in range(count)]
            sums = tf.function(lambda *held: sums_of(held), autograph=False)(*tensors)
            checksums = [collective.checksum(each.numpy()) for each in sums]
            said.append({"size": size, "sums": checksums, "seconds": 1e-3})
        return watchdog.Answer(said), "2.21.5"

    monkeypatch.setattr(summing, "ON_CARDS", 10_000)
    monkeypatch.setattr(copying, "LARGE", 2**16)
    monkeypatch.setattr(collective, "ask_cards", asked)


ELSEWHERE = {
    "placed adds and NCCL": "NCCL runs in a process of its own, which has no fake cards",
    "memory limit and NVML": "the driver is asked what a process has taken, and there is none",
    **{f"variables: {mode}": "test_training.py trains with each" for mode in MODES},
}


@pytest.mark.parametrize("number", [2, 4, 8])
def test_the_selftest_passes_and_remembers_how_fast_sums_are(number, library):
    assert ELSEWHERE.keys() < {check.name for check in selftest.CHECKS}
    checks = [check for check in selftest.CHECKS if check.name not in ELSEWHERE]
    results = list(selftest.examine(CARDS[:number], checks))
    assert [(r.check, r.state, r.found) for r in results if r.state != "passed"] == []
    sums = next(result for result in results if result.check == "sums")
    assert set(sums.figures) >= {"tree", "ring", "nccl"}
    links = ring_bandwidth(cards.detect().topology.select(range(number)), tuple(range(number)))
    assert sums.found.endswith(f"; the links have {links / 1e9:g}")
    assert set(verdicts.recall(CARDS[:number])) == {"tree", "ring", "nccl"}
    verdicts.path().unlink()


def test_the_doctor_finds_nothing_that_blocks():
    findings = doctor.examine_cards(cards.detect(), {})
    assert not [finding for finding in findings if finding.state == "blocks"]
    assert any("all cards let several processes in" in finding.found for finding in findings)


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
