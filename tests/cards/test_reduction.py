"""How gradients are summed on eight cards: what each card moves, and that every way is what one card does."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake import copies

import colonnade as cn
from colonnade.hardware import cards
from colonnade.hardware.probes import verdicts
from colonnade.run.move.reductions import chosen
from colonnade.run.sync import summation

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
RNG = np.random.default_rng(0)
ROWS, WIDTH, STEPS = 24, 48, 6
X = RNG.normal(size=(ROWS, WIDTH)).astype("float32")
IDS = RNG.integers(0, 30, size=(ROWS, 2))
Y = RNG.normal(size=ROWS).astype("float32")
TOLERANCE = 2e-5  # as in test_training


def trained(devices, rows=ROWS, table=True, steps=STEPS, **options):
    rng = np.random.default_rng(1)
    layers = [tf.Variable(rng.normal(size=(WIDTH, WIDTH), scale=0.1).astype("float32")) for _ in range(3)]
    rows_of_table = tf.Variable(rng.normal(size=(30, WIDTH)).astype("float32"))

    def loss(x, ids, y):
        for layer in layers:
            x = tf.tanh(x @ layer)
        if table:
            x += tf.reduce_sum(tf.nn.embedding_lookup(rows_of_table, ids), axis=1)
        return (tf.reduce_mean(x, axis=1) - y) ** 2

    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, global_clipnorm=0.5)
    trainer = cn.Trainer(loss, optimizer, devices=devices, **options)
    data = tf.data.Dataset.from_tensors((X[:rows], IDS[:rows], Y[:rows])).repeat()
    trainer.fit(data, steps=steps, log_every=steps, progress=False)
    return [v.numpy() for v in (*layers, rows_of_table)], trainer, data


@pytest.fixture(scope="module")
def one_card():
    return {rows: trained(CARDS[:1], rows)[0] for rows in (ROWS, 23, 3)}


@pytest.mark.parametrize("rows", [ROWS, 23, 3])
@pytest.mark.parametrize(
    ("way", "home"),
    [
        ("nccl", "mirrored"),
        *((way, home) for way in ("tree", "ring") for home in ("mirrored", "partitioned")),
        ("ring", "shared"),
    ],
)
def test_every_way_is_what_one_card_does(one_card, way, home, rows):
    values, trainer, _ = trained(CARDS, rows, reduce=way, variables=home)
    for one, other in zip(values, one_card[rows], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
    first, *others = trainer.replicas()
    assert all(np.array_equal(a, b) for own in others for a, b in zip(own, first, strict=True))


def moved(number, **options):
    """Bytes that each card sends to other cards, and gets from them, in a step."""
    _, trainer, data = trained(CARDS[:number], table=False, steps=STEPS, **options)
    copies()
    trainer.fit(data, steps=STEPS, log_every=STEPS, progress=False)
    few = copies()
    trainer.fit(data, steps=2 * STEPS, log_every=2 * STEPS, progress=False)
    many = copies()
    sent, got = np.zeros(number), np.zeros(number)
    for (source, target), (_, size) in many.items():
        if "CPU" not in source + target:
            size = (size - few.get((source, target), (0, 0))[1]) / STEPS
            sent[int(source[4:])] += size
            got[int(target[4:])] += size
    return sent, got


@pytest.mark.parametrize("number", [2, 4, 8])
def test_a_ring_gives_every_card_the_same_bytes(number):
    """2 (n - 1) / n of the gradients, sent and got; some numbers more for what orders the ops."""
    size = 3 * WIDTH * WIDTH * 4
    expected = 2 * (number - 1) / number * size
    for bytes_ in moved(number, reduce="ring"):
        assert bytes_ == pytest.approx(np.full(number, expected), abs=1024)


def test_a_tree_moves_most_of_it_through_the_first_card():
    size = 3 * WIDTH * WIDTH * 4
    sent, got = moved(8, reduce="tree")
    assert (sent[0], got[0]) == pytest.approx((3 * size, 3 * size), abs=1024)  # log2(8) each way
    assert sum(sent) == pytest.approx(2 * 7 * size, abs=8 * 1024)


def test_partitioned_gradients_go_to_their_owners():
    """Each of the three matrices to its owner, and back from there to all that read it."""
    size = WIDTH * WIDTH * 4
    sent, _ = moved(4, reduce="ring", variables="partitioned")
    assert sum(sent) == pytest.approx(3 * (3 * size + 3 * size), rel=0.05)


def test_the_library_is_the_choice_only_where_the_selftest_found_it_right_and_fastest():
    assert chosen("auto", CARDS, "mirrored") == "ring"
    verdicts.remember(CARDS, {"tree": 3.0, "ring": 2.0, "nccl": 1.0})
    assert chosen("auto", CARDS, "mirrored") == "nccl"
    assert chosen("auto", CARDS, "shared") == "ring"
    assert chosen("auto", CARDS[:4], "mirrored") == "ring"  # of these nothing is known
    verdicts.remember(CARDS, {"tree": 1.0, "ring": 2.0})
    assert chosen("auto", CARDS, "mirrored") == "tree"
    verdicts.path().unlink()


def test_a_training_goes_by_what_the_selftest_found(one_card, monkeypatch):
    """On these cards, with this driver: another one has to be tested first."""
    verdicts.remember(CARDS, {"tree": 3.0, "ring": 2.0, "nccl": 1.0})
    try:
        monkeypatch.setattr(summation, "SMALL", 0)  # else so small a model takes one message
        values, trainer, _ = trained(CARDS)
        assert trainer._engine.workers._summation._library is not None
        for one, other in zip(values, one_card[ROWS], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
        newer = replace(cards.detect(), driver="999.1")
        with monkeypatch.context() as patched:
            patched.setattr(cards, "detect", lambda *_, **__: newer)
            assert verdicts.recall(CARDS) == {}
            assert chosen("auto", CARDS, "mirrored") == "ring"
        assert chosen("auto", CARDS, "mirrored") == "nccl"
    finally:
        verdicts.path().unlink()


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_nan_breaks_no_sum_of_the_library(on_nan):
    """All cards come to the sum before anything is refused, so the next step is made."""
    w = tf.Variable(tf.ones([WIDTH, 1]))
    trainer = cn.Trainer(
        lambda x: tf.squeeze(x @ w, 1),
        keras.optimizers.SGD(0.01),
        devices=CARDS,
        reduce="nccl",
        on_nan=on_nan,
    )
    bad = X.copy()
    bad[20] = np.nan
    trainer.train_on_batch(X)
    before = w.numpy()
    if on_nan == "stop":
        with pytest.raises(cn.NotFinite, match="GPU:6"):
            trainer.train_on_batch(bad)
    else:
        trainer.train_on_batch(bad)
    assert np.array_equal(w.numpy(), before)
    trainer.train_on_batch(X)
    assert not np.array_equal(w.numpy(), before)


def test_bad_values_are_one_error():
    for options in (
        {"reduce": "sum"},
        {"reduce": None},
        {"reduce": "nccl", "variables": "shared"},
        {"reduce": "nccl", "devices": [CARDS[0], "/device:CPU:0"]},
        {"reduce": "ring", "sync": cn.Asynchronous()},
        {"reduce": "nccl", "sync": cn.LocalSGD(2)},
    ):
        with pytest.raises(cn.InvalidArgument, match="reduce") as caught:
            cn.Trainer(lambda x: x, keras.optimizers.SGD(), **{"devices": CARDS[:2], **options})
        assert len(caught.value.problems) == 1
