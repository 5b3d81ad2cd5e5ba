"""What was made before a failure counts, and nothing is made by halves."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept
from lines import X, Y, linear
from test_delays import slowed

import colonnade as cn
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.protocols import Settings

GOOD = 7  # batches before the data fail
WAYS = {
    "shared": {"variables": "shared"},
    "mirrored": {"variables": "mirrored"},
    "partitioned": {"variables": "partitioned"},
    "local": {"sync": cn.LocalSGD(2)},
}


def failing(good, rows=8):
    """Batches of ones, and then one that cannot be made: an error of an op, not of Python."""

    def batch(i):
        with tf.control_dependencies(
            [tf.debugging.assert_less(i, tf.constant(good, tf.int64), "out of paper")]
        ):
            return tf.ones([rows])

    return tf.data.Dataset.range(good + 3).map(batch)


def many_weights(**options):
    """Weights that a step moves by one each, in an update that takes its time."""
    weights = [tf.Variable(0.0) for _ in range(12)]
    optimizer = keras.optimizers.SGD(1.0)
    slowed(optimizer).assign(60)
    trainer = cn.Trainer(lambda x: -tf.add_n(weights) * x, optimizer, devices=3, **options)
    return weights, trainer


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", kept(WAYS, "mirrored", "local"))
def test_data_that_fail_leave_whole_steps(way):
    weights, trainer = many_weights(**WAYS[way])
    with pytest.raises(tf.errors.InvalidArgumentError, match="out of paper"):
        trainer.fit(failing(GOOD), log_every=100, progress=False)
    assert (trainer.step, trainer.examples) == (GOOD, 8 * GOOD)
    np.testing.assert_array_equal(weights, np.full(12, float(GOOD)))
    trainer.fit(failing(2), steps=2, progress=False)
    assert trainer.step == GOOD + 2
    np.testing.assert_array_equal(weights, np.full(12, float(GOOD + 2)))


def test_data_that_fail_behind_the_last_step_do_no_harm():
    weights, trainer = many_weights()
    history = trainer.fit(failing(GOOD), steps=GOOD, progress=False)
    assert (trainer.step, len(history.losses)) == (GOOD, GOOD)
    np.testing.assert_array_equal(weights, np.full(12, float(GOOD)))


def test_a_generator_that_raises():
    def generator():
        for _ in range(3):
            yield X[:8], Y[:8]
        raise OSError("disk on fire")

    w, trainer = linear()
    seen = []
    with pytest.raises(tf.errors.OpError, match="disk on fire"):
        trainer.fit(generator(), log_every=1, callbacks=[seen.append], progress=False)
    assert trainer.step == 3
    v, same = linear()
    expected = [same.train_on_batch(X[:8], Y[:8]) for _ in range(3)]
    np.testing.assert_allclose(w, v, rtol=0, atol=1e-6)
    assert [record.step for record in seen] == [1, 2, 3]
    np.testing.assert_allclose([r.loss for r in seen], [r.loss for r in expected], rtol=1e-6)


def test_a_step_that_fails_is_not_counted_and_those_before_are():
    w = tf.Variable(0.0)

    def loss(x):
        with tf.control_dependencies([tf.debugging.assert_less(w, 3.5, "too large")]):
            return -w * x, {"seen": x}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(1.0), devices=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        trainer.fit(tf.data.Dataset.from_tensors(tf.ones([4])).repeat(9), log_every=100, progress=False)
    assert (trainer.step, trainer.examples, float(w)) == (4, 16, 4.0)


@pytest.mark.parametrize("culprit", ["step", "data"])
def test_only_a_failed_step_leaves_something_under_way(culprit):
    w = tf.Variable(0.0)

    def loss(x):
        with tf.control_dependencies([tf.debugging.assert_less(w, 3.5, "too large")]):
            return -w * x

    settings = Settings(loss, keras.optimizers.SGD(1.0), ("/device:CPU:0", "/device:CPU:1"), "shared")
    stream = (
        cn.Synchronous()
        .engine(settings)
        .loop(lambda outcome, batch: outcome.loss)
        .stream(FitData(failing(9 if culprit == "step" else 4, rows=4).map(lambda x: (x,)), ["x"], {}))
    )
    chunk = stream.take(9)
    assert (chunk.steps, chunk.examples, chunk.updates, float(w)) == (4, 16, 4, 4.0)
    np.testing.assert_allclose(chunk.losses, [0.0, -1.0, -2.0, -3.0])
    assert chunk.replicas == [-3.0, -3.0]
    assert stream.resting == (culprit == "data")
    if culprit == "step":
        with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            stream.settle()
    else:
        assert stream.settle() is None
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"too large|out of paper"):
        stream.take(1)
