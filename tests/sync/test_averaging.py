"""How replicas are joined, against NumPy: by their average, by an outer optimizer, by a centre."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from numpy_local import RATE, START, X, Y, averaged, batches, linear, numpy_local, trained

import colonnade as cn

RNG = np.random.default_rng(1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("steps", [8, 10])
def test_local_sgd_is_the_numpy_reference(steps):
    replicas, _ = numpy_local(steps, 3, 4, averaged)
    w, trainer = trained(cn.LocalSGD(every=4), steps)
    # After a join the user's variables hold the average; in between they show it.
    np.testing.assert_allclose(w, np.mean(replicas, axis=0), rtol=0, atol=1e-13)
    for own, expected in zip(trainer.replicas(), replicas, strict=True):
        np.testing.assert_allclose(own[0], expected, rtol=0, atol=1e-13)


def test_diloco_is_the_numpy_reference():
    velocity = np.zeros_like(START)
    rate, momentum = float(np.float32(0.7)), float(np.float32(0.9))  # as Keras keeps them

    def nesterov(replicas, anchor):
        nonlocal velocity
        moved = anchor - np.mean(replicas, axis=0)
        velocity = momentum * velocity + moved
        anchor = anchor - rate * (moved + momentum * velocity)
        return [anchor] * len(replicas), anchor

    replicas, _ = numpy_local(14, 3, 4, nesterov)
    w, trainer = trained(cn.DiLoCo(every=4), 14)
    np.testing.assert_allclose(w, np.mean(replicas, axis=0), rtol=0, atol=1e-13)
    for own, expected in zip(trainer.replicas(), replicas, strict=True):
        np.testing.assert_allclose(own[0], expected, rtol=0, atol=1e-13)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_elastic_is_the_numpy_reference(alpha):
    def pull(replicas, centre):
        pulls = [alpha * (w - centre) for w in replicas]
        return [w - p for w, p in zip(replicas, pulls, strict=True)], centre + sum(pulls)

    replicas, centre = numpy_local(10, 3, 4, pull)
    w, trainer = trained(cn.Elastic(every=4, alpha=alpha), 10)
    np.testing.assert_allclose(w, centre, rtol=0, atol=1e-13)
    for own, expected in zip(trainer.replicas(), replicas, strict=True):
        np.testing.assert_allclose(own[0], expected, rtol=0, atol=1e-13)
    error = (X @ centre - Y)[:, 0]
    assert trainer.evaluate((X, Y), batch_size=20).loss == pytest.approx(np.mean(error**2), rel=1e-6)


@pytest.mark.long
def test_elastic_with_alpha_0_is_independent_workers():
    _, trainer = trained(cn.Elastic(every=2, alpha=0.0), 6, optimizer=keras.optimizers.Adam(0.05))
    for i, (own,) in enumerate(trainer.replicas()):
        alone, worker = linear(None, keras.optimizers.Adam(0.05), devices=1)
        for x, y in batches(6):
            worker.train_on_batch(np.array_split(x, 3)[i], np.array_split(y, 3)[i])
        np.testing.assert_allclose(own, alone.numpy(), rtol=0, atol=1e-13)


def test_weights_of_examples_count_in_the_average():
    mask = (RNG.uniform(size=24) < 0.4).astype("float64")
    mask[:8] = 0.0  # the first replica's slice has no weight at all
    found = []
    for sync in (cn.Synchronous(), cn.LocalSGD(1)):
        w = tf.Variable(START)
        trainer = cn.Trainer(
            lambda x, y, m, w=w: (
                cn.Weighted(tf.squeeze((x @ w - y) ** 2, axis=1), m),
                {"size": tf.abs(tf.squeeze(y, 1))},
            ),
            keras.optimizers.SGD(RATE),
            devices=3,
            sync=sync,
        )
        record = trainer.train_on_batch(X[:24], Y[:24], mask)
        found.append((w.numpy(), record.loss, record.metrics["size"]))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(found[1][1:], found[0][1:], rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("sync", [cn.DiLoCo(4), *long(cn.LocalSGD(4, outer=keras.optimizers.SGD(0.5)))])
def test_assigning_to_one_variable_leaves_the_course_of_the_others(sync):
    def reached(*, assign):
        a, b = tf.Variable([0.0]), tf.Variable([0.0])
        trainer = cn.Trainer(
            lambda x: (a[0] - x) ** 2 + (b[0] - x) ** 2, keras.optimizers.SGD(0.05), devices=2, sync=sync
        )
        for k in range(8):
            trainer.train_on_batch(np.array([1.0, 3.0, 2.0, 4.0], "float32"))
            if assign and k == 1:
                b.assign([0.5])
        return a.numpy(), b.numpy()

    (a, b), (with_b_assigned, assigned) = reached(assign=False), reached(assign=True)
    assert a == with_b_assigned
    assert b != assigned


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_replicas_that_are_equal_are_what_they_were_in_half_floats_too(half):
    """A third is no half float, and three of it are not one."""
    start = tf.constant(np.linspace(0.5, 3.5, 50), half)
    w = tf.Variable(start)
    seen = tf.Variable(start, trainable=False)

    def loss(x):
        seen.assign(seen + tf.cast(0 * tf.reduce_mean(x), half))
        return tf.reduce_sum(x * tf.cast(w, "float32"), axis=1)

    for sync in (cn.LocalSGD(1), cn.Synchronous()):  # the states of 2, 1 and 1 examples are averaged in both
        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=3, sync=sync)
        for _ in range(4):
            trainer.train_on_batch(np.ones((4, 50), "float32"))
        for variable in (w, seen):
            np.testing.assert_array_equal(variable, start)
