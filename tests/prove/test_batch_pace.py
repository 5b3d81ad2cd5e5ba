"""What the first batch tells of a step; that it changes nothing is tried in `train/test_forecast.py`."""

import keras
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.prove import batch_pace as module


def paced(loss, optimizer, batch, monkeypatch, **options):
    """The workload that the first step of a training is predicted from."""
    seen = []
    made = module.batch_pace

    def noted(engine, arguments):
        seen.append(made(engine, arguments))
        return seen[-1]

    monkeypatch.setattr("colonnade.run.train.forecast.batch_pace", noted)
    cn.Trainer(loss, optimizer, **options).fit(batch, steps=1, batch_size=12, progress=False)
    return seen[-1]


@pytest.mark.parametrize("home", ["shared", "mirrored", "partitioned"])
def test_a_slice_and_the_update_are_timed(home, monkeypatch):
    w = tf.Variable(tf.ones([8, 4]), name="w")
    b = tf.Variable(tf.ones([4]), name="b")

    def loss(x):
        return tf.reduce_sum((x @ w + b) ** 2, axis=1)

    adam = keras.optimizers.Adam(0.01)
    work = paced(loss, adam, (tf.ones([12, 8]),), monkeypatch, devices=3, variables=home)
    ((timing,),) = [layer.timings for layer in work.layers]
    assert (timing.batch, work.batch, work.input, work.parameters) == (4, 12, 32, 4 * 36)
    assert work.slots >= 2 * work.parameters
    assert 0 < timing.forward < timing.backward < 1
    assert 0 < work.update < 1
    assert 0 < work.addition < 1
    assert work.cores >= 1


@pytest.mark.parametrize("home", ["shared", "mirrored", "partitioned"])
def test_a_branch_that_takes_what_was_read_from_another_device(home, monkeypatch):
    v, w = tf.Variable(tf.ones([8]), name="v"), tf.Variable(tf.ones([8]), name="w")

    def loss(x):
        value = tf.convert_to_tensor(w)
        y = tf.cond(value[0] > 0, lambda: x * value, lambda: x - value)
        return tf.reduce_sum((y + v) ** 2, axis=1)

    adam = keras.optimizers.Adam(0.01)
    work = paced(loss, adam, (tf.ones([12, 8]),), monkeypatch, devices=2, variables=home)
    assert work.parameters == 4 * 16


def test_rows_of_sparse_gradients_are_counted(monkeypatch):
    table = tf.Variable(tf.ones([100, 4]), name="table")

    def loss(ids):
        return tf.reduce_sum(tf.gather(table, ids), axis=[1, 2])

    ids = tf.zeros([12, 3], tf.int32)
    work = paced(loss, keras.optimizers.SGD(0.01), (ids,), monkeypatch, devices=2)
    (whole,) = work.layers
    assert whole.sparse == whole.parameters == 1600
    assert whole.rows in (3 * (16 + 4), 3 * (16 + 8))
