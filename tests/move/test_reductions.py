"""The values of `reduce=`: which is chosen, and what each does not go with."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import Card
from colonnade.hardware.probes import collective, verdicts
from colonnade.run.move.reductions import LIBRARY, chosen

DEVICES = ("/device:CPU:0", "/device:CPU:1")


@pytest.fixture
def cards(monkeypatch):
    """These devices are cards, of which a self-test may have found something."""
    found = {}
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(verdicts, "recall", lambda devices: found)
    monkeypatch.setattr(collective, "refusals", lambda devices: ())
    return found


def test_on_processors_auto_is_as_it_was():
    assert chosen("auto", DEVICES, "mirrored") == "tree"
    assert chosen("ring", DEVICES, "mirrored") == "ring"


def test_on_cards_auto_is_the_ring_until_a_selftest_knows_better(cards, monkeypatch):
    assert chosen("auto", DEVICES, "mirrored") == "ring"
    assert chosen("auto", DEVICES[:1], "mirrored") == "tree"
    cards |= {"tree": 1.0, "ring": 2.0}
    assert chosen("auto", DEVICES, "mirrored") == "tree"
    cards |= {LIBRARY: 0.5}
    assert chosen("auto", DEVICES, "mirrored") == LIBRARY
    assert chosen("auto", DEVICES, "partitioned") == "tree"
    monkeypatch.setattr(collective, "refusals", lambda devices: ["these share a card"])
    assert chosen("auto", DEVICES, "mirrored") == "tree"


def refused(**options):
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Trainer(lambda x: x, keras.optimizers.SGD(), devices=2, **options)
    return caught.value.problems


@pytest.mark.parametrize("value", ["sum", "", None, 1, ["ring"]])
def test_another_value_is_refused_with_all_that_there_are(value):
    (problem,) = refused(reduce=value)
    assert (problem.argument, problem.value) == ("reduce", value)
    assert all(word in problem.rule for word in ("auto", "tree", "ring", LIBRARY))


def test_it_is_told_with_what_else_is_wrong():
    assert {p.argument for p in refused(reduce="sum", on_nan="go")} == {"reduce", "on_nan"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reduce": "ring", "sync": cn.Asynchronous()}, "only with cn.Synchronous"),
        ({"reduce": "tree", "sync": cn.Asynchronous()}, "only with cn.Synchronous"),
        ({"reduce": "ring", "sync": cn.LocalSGD(2)}, "only with cn.Synchronous"),
        ({"reduce": LIBRARY, "variables": "mirrored"}, "no cards"),
    ],
)
def test_what_has_no_meaning_is_refused(options, words):
    (problem,) = refused(**options)
    assert words in problem.rule


def test_local_training_joins_along_a_tree():
    w, batch = tf.Variable([1.0, 2.0]), np.arange(16, dtype="float32").reshape(8, 2)

    def loss(x):
        return tf.reduce_sum((x - w) ** 2, axis=1)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=4, reduce="tree", sync=cn.DiLoCo(2))
    centre, speed = np.array([1.0, 2.0]), np.zeros(2)
    for _ in range(2):  # joins, each after two local steps
        for _ in range(2):
            trainer.train_on_batch(batch)
        own = [centre.copy() for _ in range(4)]
        for _ in range(2):
            own = [
                mine - 0.1 * 2 * (mine - part.mean(0))
                for mine, part in zip(own, np.split(batch, 4), strict=True)
            ]
        moved = centre - np.mean(own, axis=0)
        speed = 0.9 * speed - 0.7 * moved
        centre = centre + 0.9 * speed - 0.7 * moved
    np.testing.assert_allclose(w.numpy(), centre, rtol=1e-5)


@pytest.mark.parametrize("home", ["shared", "partitioned"])
def test_the_library_is_for_mirrored_variables(cards, home):
    (problem,) = refused(reduce=LIBRARY, variables=home)
    assert "one device needs each" in problem.rule


def card(number, name="an H100", mig=False):
    return Card(number, f"GPU-{number}", "", name, 2**34, mig=mig)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ((card(0), card(0)), "share one"),
        ((card(0), card(1, "an A100")), "one kind, and these are an A100, an H100"),
        ((card(0), card(1, mig=True)), "MIG"),
        ((), "does not tell"),
    ],
)
def test_cards_that_the_library_cannot_serve_are_refused_by_name(monkeypatch, own, words):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(hardware, "cards_of", lambda devices: own)
    (rule,) = collective.refusals(DEVICES)
    assert words in rule
    monkeypatch.setattr(hardware, "cards_of", lambda devices: (card(0), card(1)))
    assert not list(collective.refusals(DEVICES))
