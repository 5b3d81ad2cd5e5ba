"""Shares of a batch: sizes, when they change, and that the gradient stays that of the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from hypothesis import given
from hypothesis import strategies as st

import colonnade as cn
from colonnade.run.batch.shares import FIRST_WINDOW, MeasuredShares, alike, proportional
from colonnade.run.sync import workers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(31, 4))
Y = RNG.normal(size=(31, 1))


@given(
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
    spare=st.integers(0, 500),
)
def test_sizes_add_up_and_none_is_empty(weights, spare):
    total = len(weights) + spare
    counts = proportional(total, weights)
    assert sum(counts) == total
    assert min(counts) >= 1
    exact = np.array(weights) / sum(weights) * total
    fair = exact >= 1
    if fair.all():
        assert (np.abs(counts - exact) < 1).all()


def test_speeds_that_are_nearly_equal_are_taken_as_equal():
    assert alike(np.array([10.0, 2.0, 10.5, 2.0])).tolist() == [10.25, 2.0, 10.25, 2.0]


def told(shares, seconds_per_row, steps, total=100):
    """Some steps in which devices need so long for a row."""
    counts = shares.counts(total)
    for _ in range(steps):
        seconds = [tf.constant(s * c, tf.float64) for s, c in zip(seconds_per_row, counts, strict=True)]
        shares.note(shares.of_step(seconds, counts))
    shares.reconsider()


def test_faster_devices_get_more_after_a_while_and_not_at_every_whim():
    shares = MeasuredShares(2)
    assert shares.counts(100) == (50, 50)
    told(shares, [9.0, 1.0], 1)  # the first call does not count
    told(shares, [1.0, 4.0], FIRST_WINDOW - 1)
    assert shares.counts(100) == (50, 50)
    told(shares, [1.0, 4.0], 1)
    assert shares.counts(100) == (80, 20)
    told(shares, [1.0, 4.0], 1)
    told(shares, [1.0, 4.2], 10 * FIRST_WINDOW)
    assert shares.counts(100) == (80, 20)  # 4% is not worth a trace
    told(shares, [1.0, 1.0], 100 * FIRST_WINDOW)
    assert shares.counts(100) == (50, 50)
    assert shares.counts(1) == (1,)


def test_machines_note_the_sum_of_what_each_measured():
    """A machine that has no rows of a small batch adds nothing."""
    both = [MeasuredShares(3), MeasuredShares(3, first=2)]
    for _ in range(2):
        for _ in range(FIRST_WINDOW):
            measured = (
                both[0].of_step(tf.constant([1.0, 1.0], tf.float64), (10, 10)),
                both[1].of_step([], ()),
            )
            late = both[1].of_step(tf.constant([4.0], tf.float64), (10,))
            for one in both:
                one.note(sum(measured) + late)
        for one in both:
            one.reconsider()
    assert [one.counts(90) for one in both] == [(40, 40, 10)] * 2


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_the_gradient_is_exact_with_any_sizes(home):
    found = []
    for devices, sync in ((1, None), (3, cn.Synchronous(shares="measured"))):
        w = tf.Variable(np.ones([4, 1]))
        trainer = cn.Trainer(
            lambda x, y, w=w: tf.squeeze((x @ w - y) ** 2, axis=1),
            keras.optimizers.SGD(0.1, momentum=0.9),
            devices=devices,
            sync=sync,
            variables=home,
        )
        trainer.train_on_batch(X, Y)
        if devices == 3:
            trainer._engine.shares.speeds = np.array([7.0, 1.0, 2.0])
            assert trainer._engine.shares.counts(31) == (22, 3, 6)
            assert trainer.shares() == pytest.approx(dict(zip(trainer.devices, [0.7, 0.1, 0.2], strict=True)))
        history = trainer.fit(((X, Y) for _ in range(4)), progress=False)
        found.append((w.numpy(), history.losses))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6)


def test_replicas_are_timed_inside_the_graph():
    w = tf.Variable(1.0)

    def loss(x):
        # Work in proportion to the rows, and four times as much on the second device.
        tf.debugging.assert_positive(tf.reduce_sum(x) + 1.0)
        times = 4 if "CPU_1" in tf.get_current_name_scope() else 1
        work = tf.repeat(x[:, None], 800, axis=1)
        for _ in range(2 * times):
            work = tf.tanh(work) @ tf.ones([800, 800]) / 800.0
        return w * x + 1e-9 * tf.reduce_mean(work)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2, sync=cn.Synchronous(shares="measured"))
    data = tf.data.Dataset.from_tensors(np.ones(64, "float32")).repeat()
    trainer.fit(data, steps=12, log_every=4, progress=False)
    fast, slow = trainer.shares().values()
    assert fast > 1.5 * slow  # how much exactly depends on what else the machine does
    assert fast + slow == pytest.approx(1)


@pytest.mark.long  # a process of its own
def test_memory_is_estimated_for_the_largest_slice(monkeypatch):
    w = tf.Variable(1.0)
    sync = cn.Synchronous(shares="measured")
    trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), devices=2, sync=sync)
    trainer._engine.shares.speeds = np.array([1.0, 4.0])
    parts, estimated = [], workers.of_replicas

    def noted(traced, optimizer, part, *rest):
        parts.append(part)
        return estimated(traced, optimizer, part, *rest)

    monkeypatch.setattr(workers, "of_replicas", noted)
    trainer.memory(np.ones(100, "float32"))
    assert [part.components()[-1].shape[0] for part in parts] == [80]


def test_speeds_are_kept_in_a_checkpoint():
    def made(devices):
        w = tf.Variable(1.0)
        sync = cn.Synchronous(shares="measured")
        trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.0), devices=devices, sync=sync)
        trainer.train_on_batch(np.ones(8, "float32"))
        return trainer._engine

    engine, again, fewer = made(2), made(2), made(1)
    engine.shares.speeds = np.array([3.0, 1.0])
    own = {name: [v.numpy() for v in values] for name, values in engine.state().own.items()}
    again.resume(own)
    assert again.shares.counts(8) == (6, 2)
    fewer.resume(own)
    assert fewer.shares.counts(8) == (8,)


@pytest.mark.parametrize("shares", ["fair", ["even"], None])
def test_bad_shares(shares):
    with pytest.raises(cn.InvalidArgument, match="must be even or measured"):
        cn.Synchronous(shares=shares)
