"""Threads that take slices as they are free, by what must hold in any order; and orders that cannot be."""

import time
from itertools import islice

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from numpy_async import X, Y, batches, linear, reference

import colonnade as cn
from colonnade.reason.simulator.staleness import ReadOrApply, race


@pytest.mark.parametrize("bound", [None, *long(0), 2])
def test_no_update_is_lost_and_none_is_older_than_the_bound(bound):
    w = tf.Variable(0.0)
    trainer = cn.Trainer(
        lambda x: -w * x, keras.optimizers.SGD(1.0), devices=8, sync=cn.Asynchronous(max_staleness=bound)
    )
    data = tf.data.Dataset.from_tensors(np.ones(8, "float32")).repeat()
    history = trainer.fit(data, steps=100, progress=False)
    assert w.numpy() == 800.0
    staleness = history.records[-1].staleness
    assert sum(staleness.values()) == 800
    assert bound is None or max(staleness) <= bound
    assert (trainer.step, trainer.examples, len(history.losses)) == (100, 800, 100)


@pytest.mark.parametrize("bound", [None, 3])
def test_a_fast_device_overtakes_a_slow_one(bound):
    """One slice takes 0.3 s; meanwhile the other device goes on, as far as the bound lets it."""
    w = tf.Variable(0.0)

    def slow(x):
        time.sleep(0.3 * float(x[0] == 2))
        return x

    trainer = cn.Trainer(
        lambda x: -w * tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), [1]),
        keras.optimizers.SGD(0.0),
        devices=2,
        sync=cn.Asynchronous(max_staleness=bound),
    )
    rows = np.ones((40, 2), "float32")
    rows[20, 0] = 2
    trainer.fit(tf.data.Dataset.from_tensor_slices(rows), progress=False)
    oldest = max(trainer.staleness)
    assert oldest > 10 if bound is None else oldest == bound


def test_no_half_of_an_update_is_read():
    """Two large variables get the same updates; whoever reads them finds them equal."""
    a, b = (tf.Variable(tf.zeros([50_000])) for _ in range(2))

    def loss(x):
        apart = tf.reduce_max(tf.abs(a - b))
        return -x * (tf.reduce_mean(a) + tf.reduce_mean(b)), {"apart": apart + 0 * x}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(1000.0), devices=6, sync=cn.Asynchronous())
    seen = []
    trainer.fit(
        ((np.ones(6, "float32"),) for _ in range(60)),
        log_every=1,
        callbacks=[lambda record: seen.append(record.metrics["apart"])],
        progress=False,
    )
    assert a.numpy()[0] > 0
    assert seen == [0.0] * 60


def test_a_nan_with_real_threads_stops_all():
    w = tf.Variable(1.0)
    trainer = cn.Trainer(
        lambda x: w * tf.math.log(x), keras.optimizers.SGD(0.0), devices=4, sync=cn.Asynchronous()
    )
    data = [np.ones(8, "float32")] * 20 + [-np.ones(8, "float32")] + [np.ones(8, "float32")] * 20
    with pytest.raises(cn.NotFinite, match="at step 21"):
        trainer.fit(((x,) for x in data), progress=False, log_every=100)
    assert trainer.step == 20


def test_a_replica_that_raises_stops_all_and_is_named():
    w = tf.Variable(1.0)

    def loss(x):
        tf.debugging.assert_less(x, 10.0)
        return w * x

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=3, sync=cn.Asynchronous())
    data = [np.ones(6, "float32")] * 30
    data[12] = np.array([1, 2, 3, 4, 5, 11], "float32")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"on /device:CPU:\d, at step 13"):
        trainer.fit(((x,) for x in data), progress=False)
    assert trainer.step == 12


def test_printing_says_which_device_spoke(capfd):
    w = tf.Variable(1.0)

    def loss(x):
        tf.print("hello", output_stream="file:///dev/stderr")
        return w * x

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2, sync=cn.Asynchronous())
    trainer.train_on_batch(np.ones(2, "float32"))
    said = capfd.readouterr().err
    assert said.count("hello") == 2
    assert "[CPU:" in said


@pytest.mark.parametrize(
    ("order", "bound", "says"),
    [
        ([ReadOrApply("read", 0)], None, "are left at the end of the order"),
        ([ReadOrApply("read", 0), ReadOrApply("read", 0)], None, "before the device has applied"),
        ([ReadOrApply("read", 0), ReadOrApply("read", 1)], 0, "max_staleness lets the device wait"),
        ([("write", 0)], None, "a read or an apply"),
        ([ReadOrApply("read", 7)], None, "one of the devices"),
        (["read"], None, "a read or an apply"),
        ([3], None, "a read or an apply"),
    ],
)
def test_orders_that_cannot_be(order, bound, says):
    _, trainer = linear(cn.Asynchronous(bound, order=order))
    with pytest.raises(cn.InvalidArgument, match=says):
        trainer.train_on_batch(X, Y)


def test_islice_of_a_race_is_an_order_too():
    w, trainer = linear(cn.Asynchronous(order=list(islice(race([1.0, 2.0, 3.0]), 100))))
    trainer.fit(batches(4), progress=False)
    expected, _ = reference(race([1.0, 2.0, 3.0]), batches(4), 3)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
