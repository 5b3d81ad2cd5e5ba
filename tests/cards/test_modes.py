"""Training that is not synchronous, on 2, 4 and 8 cards, is what NumPy makes of it. In float64."""

import keras
import numpy as np
import numpy_async
import numpy_local
import pytest
import tensorflow as tf
from numpy_local import START, X, Y, averaged, trained

import colonnade as cn
from colonnade.reason.simulator.staleness import race
from colonnade.run.asynchronous.workers import ParameterAccess

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
ON_SOME = pytest.mark.parametrize("number", [2, 4, 8])
STEPS, EVERY = 10, 4


def nesterov():
    """DiLoCo's outer optimizer, with the numbers as Keras keeps them."""
    rate, momentum, velocity = float(np.float32(0.7)), float(np.float32(0.9)), np.zeros_like(START)

    def meet(replicas, anchor):
        nonlocal velocity
        moved = anchor - np.mean(replicas, axis=0)
        velocity = momentum * velocity + moved
        anchor = anchor - rate * (moved + momentum * velocity)
        return [anchor] * len(replicas), anchor

    return meet


def pulled(replicas, centre):
    pulls = [0.1 * (w - centre) for w in replicas]
    return [w - p for w, p in zip(replicas, pulls, strict=True)], centre + sum(pulls)


def assert_is_reference(sync, number, meet, *, centred=False):
    replicas, centre = numpy_local.numpy_local(STEPS, number, EVERY, meet)
    w, trainer = trained(sync, STEPS, devices=CARDS[:number])
    seen = centre if centred else np.mean(replicas, axis=0)
    np.testing.assert_allclose(w, seen, rtol=0, atol=1e-13)
    for own, expected in zip(trainer.replicas(), replicas, strict=True):
        np.testing.assert_allclose(own[0], expected, rtol=0, atol=1e-13)
    error = (X @ seen - Y)[:, 0]
    assert trainer.evaluate((X, Y), batch_size=20).loss == pytest.approx(np.mean(error**2), rel=1e-6)
    assert {home[-5:] for home in trainer._engine.housed.where().values()} <= {"GPU:0", "CPU:0"}


@ON_SOME
def test_local_sgd(number):
    assert_is_reference(cn.LocalSGD(EVERY), number, averaged)


@ON_SOME
def test_diloco(number):
    assert_is_reference(cn.DiLoCo(EVERY), number, nesterov())


@ON_SOME
def test_elastic(number):
    assert_is_reference(cn.Elastic(EVERY, 0.1), number, pulled, centred=True)


@ON_SOME
@pytest.mark.parametrize(("bound", "damping"), [(None, True), (1, False)])
def test_asynchronous_in_a_fixed_order(number, bound, damping):
    """The last card is six times as slow as the others."""
    seconds = [*[1.0] * (number - 1), 6.0]
    data = list(numpy_async.batches(6, size=20))
    expected, ages = numpy_async.reference(race(seconds, bound), data, number, damping)
    sync = cn.Asynchronous(bound, damping, order=race(seconds, bound))
    w, trainer = numpy_async.linear(sync, devices=CARDS[:number])
    trainer.fit(iter(data), progress=False, log_every=5)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
    assert trainer.staleness == {age: ages.count(age) for age in set(ages)}


@ON_SOME
def test_asynchronous_as_it_comes(number):
    """Every gradient is applied once, and none is older than it may be."""
    w, trainer = numpy_async.linear(cn.Asynchronous(max_staleness=2), devices=CARDS[:number])
    trainer.fit(numpy_async.batches(12, size=20), progress=False)
    assert sum(trainer.staleness.values()) == 12 * number
    assert max(trainer.staleness) <= 2
    error = (numpy_async.X @ w.numpy() - numpy_async.Y)[:, 0]
    start = (numpy_async.X @ numpy_async.START - numpy_async.Y)[:, 0]
    assert np.mean(error**2) < np.mean(start**2)
    data = (numpy_async.X, numpy_async.Y)
    assert trainer.evaluate(data, batch_size=25).loss == pytest.approx(np.mean(error**2), rel=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
def test_the_first_card_holds_no_parameters_that_another_computes_with(monkeypatch, ordered):
    """Each card has those that it read, so the estimate counts them once for each."""
    seen = []
    original = ParameterAccess.work

    def noted(self, device, piece, parameters, **options):
        seen.append((device, {tensor.device[-5:] for tensor in parameters}))
        return original(self, device, piece, parameters, **options)

    monkeypatch.setattr(ParameterAccess, "work", noted)
    sync = cn.Asynchronous(order=race([1.0] * 4, None)) if ordered else cn.Asynchronous()
    _, trainer = numpy_async.linear(sync, devices=CARDS[:4])
    trainer.fit(iter(list(numpy_async.batches(6, size=20))), progress=False)
    assert len(seen) == 24
    assert all(where == {f"GPU:{device}"} for device, where in seen)


@pytest.mark.parametrize("sync", [cn.LocalSGD(EVERY), cn.Elastic(EVERY, 0.1)], ids=["local", "elastic"])
def test_a_checkpoint_between_two_meetings_goes_on(tmp_path, sync):
    def fit(steps, folder):
        keras.backend.clear_session()  # as in a program that is started anew, names begin anew
        w, trainer = numpy_local.linear(sync, devices=CARDS[:4])
        checkpoint = cn.Checkpoint(folder, every=3)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(20).repeat()
        trainer.fit(data, steps=steps, progress=False, checkpoint=checkpoint)
        return [w.numpy(), *(own[0] for own in trainer.replicas())]

    fit(6, tmp_path / "a")  # two steps after they have met
    for one, other in zip(fit(STEPS, tmp_path / "a"), fit(STEPS, tmp_path / "b"), strict=True):
        assert np.array_equal(one, other)


def test_the_estimate_counts_what_is_on_its_way_from_the_first_card():
    """What it computes with, what all share, and one for each of the three others."""
    _, trainer = numpy_async.linear(cn.Asynchronous(), devices=CARDS[:4])
    first, *others = trainer.memory(numpy_async.X[:20], numpy_async.Y[:20]).devices
    assert {first.parameters / other.parameters for other in others} == {2 + 3}
