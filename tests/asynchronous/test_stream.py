"""Steps that follow each other without waiting: how they are fed, looked at, ended and timed."""

import itertools
import math
import os
import signal
import threading
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_async import X, Y, batches, linear, reference

import colonnade as cn
from colonnade.reason.simulator.staleness import ReadOrApply, race
from colonnade.run.asynchronous.slice_call import SliceReport
from colonnade.run.asynchronous.step_record import FinishedSlice, Slicing
from colonnade.run.asynchronous.stream import AsynchronousStream


def test_a_fixed_order_that_a_callback_ends_does_not_depend_on_the_clock(monkeypatch):
    ended = []
    for short in (0.0, math.inf):
        monkeypatch.setattr("colonnade.run.asynchronous.stream.SHORT", short)
        w, trainer = linear(cn.Asynchronous(order=race([1.0, 1.5, 2.0])))
        stop = [lambda record: record.step >= 8]
        trainer.fit(batches(40), callbacks=stop, log_every=4, progress=False)
        ended.append((trainer.step, w.numpy().tolist()))
    assert ended[0] == ended[1]


def test_steps_one_by_one_in_a_fixed_order():
    order = [ReadOrApply(kind, i) for _ in range(3) for kind in ("read", "apply") for i in (2, 0, 1)]
    w, trainer = linear(cn.Asynchronous(order=order))
    for batch in batches(3):
        record = trainer.train_on_batch(*batch)
    expected, _ = reference(order, batches(3), 3)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
    assert record.staleness == {0: 3, 1: 3, 2: 3}


def test_a_smaller_last_batch_does_not_set_back_the_count():
    w = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.0)
    trainer = cn.Trainer(lambda x: w * x, optimizer, devices=3, sync=cn.Asynchronous())
    trainer.fit((np.ones(28, "float32"),), batch_size=6, log_every=1, progress=False)
    assert int(optimizer.iterations) == 5


def test_an_error_in_a_step_that_was_begun_is_raised_though_a_callback_ends_the_fit():
    """While the fifth step is taken, slices of the sixth are in the queue: data come faster than steps."""
    w = tf.Variable(1.0)

    def slow(x):
        time.sleep(0.05)
        return x

    def loss(x):
        return w * tf.math.log(tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), x.shape))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2, sync=cn.Asynchronous())
    data = [np.ones(2, "float32")] * 30
    data[5] = -data[0]
    with pytest.raises(cn.NotFinite, match=r"at step 6.* This slice was not applied; other slices may"):
        trainer.fit(((x,) for x in data), log_every=5, callbacks=[lambda _: True], progress=False)
    assert trainer.step == 5


def test_time_of_callbacks_does_not_count():
    """Two devices need 0.05 s for a slice each, of which there are eight."""

    def slow(x):
        time.sleep(0.05)
        return x

    w = tf.Variable(1.0)
    trainer = cn.Trainer(
        lambda x: w * tf.ensure_shape(tf.numpy_function(slow, [x], tf.float32), [1]),
        keras.optimizers.SGD(0.0),
        devices=2,
        sync=cn.Asynchronous(),
    )
    data = tf.data.Dataset.from_tensors(np.ones(2, "float32")).repeat()
    begin = time.perf_counter()
    history = trainer.fit(data, steps=4, log_every=1, callbacks=[lambda _: time.sleep(0.25)], progress=False)
    assert history.seconds > 0.19
    assert history.seconds < time.perf_counter() - begin - 0.3


class Burst:
    """Workers that finish all that they were given at once, after a while; in place of threads."""

    def __init__(self, shared):
        self.given, self.access = [], SimpleNamespace(computed_until=-math.inf)

    waiting = 0

    def give(self, piece):
        self.given.append(piece)

    def next(self, few):
        time.sleep(0.04)
        done, self.given = self.given, []
        report = SliceReport(np.float32(1), np.ones(1, "float32"), np.ones(1, "float32"))
        return [FinishedSlice(piece, 0, report, 0, None) for piece in done]


def test_steps_that_devices_were_ahead_with_have_their_part_of_the_time(monkeypatch):
    monkeypatch.setattr("colonnade.run.asynchronous.stream.DeviceThreads", Burst)
    engine = SimpleNamespace(devices=("CPU:0", "CPU:1"), order=None, steps=0, made=0, begin=lambda: None)
    slicing = Slicing(1, (1,), None, {}, (), tf.float32)
    loop = SimpleNamespace(engine=engine, preparing=0.0, idle=0)
    stream = AsynchronousStream(loop, iter([(slicing, [[]])] * 4))
    begin = time.perf_counter()
    took = [stream.take(1).seconds for _ in range(4)]  # all four are complete after the first
    passed = time.perf_counter() - begin
    assert min(took) > 0.009
    assert 0.04 < sum(took) <= passed
    assert stream.take(1) is None


def test_twenty_skipped_steps_in_a_row_end_a_fit_wherever_its_log_lines_are():
    w = tf.Variable([1.0])
    trainer = cn.Trainer(
        lambda x: x * w[0], keras.optimizers.SGD(0.1), devices=2, sync=cn.Asynchronous(), on_nan="skip"
    )
    bad, good = np.full(2, np.nan, "float32"), np.ones(2, "float32")
    trainer.fit([good, *[bad] * 19, good], log_every=100, progress=False)
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        trainer.fit([good, *[bad] * 25, good], log_every=100, progress=False)


def test_ctrl_c_ends_the_fit_with_what_was_reached():
    w = tf.Variable(0.0)
    trainer = cn.Trainer(lambda x: -w * x, keras.optimizers.SGD(1.0), devices=4, sync=cn.Asynchronous())
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    history = trainer.fit((np.ones(40, "float32"),), batch_size=4, steps=10**7, progress=False)
    assert history.interrupted
    assert trainer.step == len(history.losses) > 0
    assert w.numpy() == 4 * trainer.step  # steps that were begun are complete


def test_callbacks_look_at_a_model_that_stands_still_and_may_change_it():
    w, trainer = linear(cn.Asynchronous(max_staleness=2))
    seen = []

    def look(record):
        first = w.numpy()
        loss = trainer.evaluate((X, Y), batch_size=20).loss
        assert np.array_equal(first, w.numpy())
        assert loss == pytest.approx(np.mean((X @ first - Y) ** 2))
        trainer.optimizer.learning_rate = 0.0
        seen.append(first)
        return record.step >= 8

    history = trainer.fit(batches(40), callbacks=[look], log_every=4, progress=False)
    assert len(seen) == 2
    assert np.array_equal(seen[0], seen[1])  # from the first look on the rate is 0
    assert np.array_equal(seen[1], w.numpy())
    assert trainer.step == len(history.losses) == history.records[-1].step >= 8


def test_a_callback_that_raises_ends_the_fit():
    _, trainer = linear(cn.Asynchronous())

    def fail(record):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.fit(batches(40), callbacks=[fail], log_every=4, progress=False)
    trainer.train_on_batch(X, Y)


def test_training_inside_a_callback_is_refused():
    _, trainer = linear(cn.Asynchronous())
    with pytest.raises(cn.InvalidArgument, match="while the devices are at work"):
        trainer.fit(
            batches(9), log_every=4, callbacks=[lambda _: trainer.train_on_batch(X, Y)], progress=False
        )


def test_data_that_come_slower_than_they_are_taken_do_not_hold_up_the_main_thread():
    """The queue is empty whenever it is looked at; the main thread gives a few batches and goes on."""
    w, drawn, seen = tf.Variable(0.0), [], []

    def slow():
        for _ in range(150):
            time.sleep(0.005)
            drawn.append(1)
            yield (np.ones(2, "float32"),)

    def look(_):
        seen.append(len(drawn))
        return len(seen) == 2

    trainer = cn.Trainer(lambda x: -w * x, keras.optimizers.SGD(1.0), devices=2, sync=cn.Asynchronous())
    trainer.train_on_batch(np.ones(2, "float32"))  # so that nothing is traced meanwhile
    trainer.fit(slow(), log_every=1, callbacks=[look], progress=False)
    assert max(seen) <= 20


def test_what_a_callback_assigns_all_devices_take():
    """A number that the function only reads, and a sum that it changes; device 1 has copies of both."""
    w, scale = tf.Variable(0.0), tf.Variable(1.0, trainable=False)
    seen = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.SUM)

    def loss(x):
        seen.assign_add(float(x.shape[0]))
        return -w * scale * x

    told = []

    def anneal(record):
        told.append((float(w), float(seen)))
        scale.assign(0.0)
        seen.assign(0.0)

    order = itertools.cycle([("read", 0), ("apply", 0), ("read", 1), ("apply", 1)])
    sync = cn.Asynchronous(order=order)
    trainer = cn.Trainer(loss, keras.optimizers.SGD(1.0), devices=2, sync=sync)
    data = [np.ones(4, "float32")] * 12
    trainer.fit(iter(data), log_every=4, callbacks=[anneal], progress=False)
    first, *later = told
    assert {moved for moved, _ in later} == {first[0]}  # from the first look on the loss is 0
    assert sum(examples for _, examples in told) == 48 - float(seen)
