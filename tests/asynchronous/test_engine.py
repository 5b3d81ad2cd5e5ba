"""Asynchronous training: in a fixed order against NumPy, with real threads by what must hold in any order."""

import json
import math
import os
import signal
import threading
import time
from collections import deque
from itertools import count, islice
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long

import colonnade as cn
from colonnade.reason.staleness import Event, race
from colonnade.run.asynchronous import fetch
from colonnade.run.asynchronous.int_tensors import Numbers
from colonnade.run.asynchronous.stream import Run
from colonnade.run.data.batches import without_tuning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * RNG.normal(size=(60, 1))
START = np.linspace(-1, 1, 4)[:, None]
RATE = 0.03125  # exact in float32, in which Keras keeps it


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("colonnade")] == []


def linear(sync, devices=3, optimizer=None, **options):
    w = tf.Variable(START, name="weights")

    def loss(x, y):
        error = tf.squeeze(x @ w - y, axis=1)
        return error**2, {"absolute": tf.abs(error)}

    optimizer = optimizer or keras.optimizers.SGD(RATE)
    return w, cn.Trainer(loss, optimizer, devices=devices, sync=sync, **options)


def batches(steps, size=10):
    for k in range(steps):
        rows = np.arange(k * size, (k + 1) * size) % len(X)
        yield X[rows], Y[rows]


def reference(order, data, devices, damping=False):
    """Ten lines of NumPy: who reads takes the next slice, who applies moves by what it read."""
    queue = deque((x, y) for b in data for x, y in zip(*(np.array_split(a, devices) for a in b), strict=True))
    w, held, updates, ages = START, {}, 0, []
    for kind, device in order:
        if kind == "read" and queue:
            held[device] = (*queue.popleft(), w, updates)
        elif kind == "apply" and device in held:
            x, y, old, read_at = held.pop(device)
            ages.append(updates - read_at)
            w = w - RATE / (1 + damping * ages[-1]) * 2 * x.T @ (x @ old - y) / len(x)
            updates += 1
        if not queue and not held:
            return w, ages
    raise AssertionError("the order is too short")


@pytest.mark.parametrize(
    ("seconds", "bound", "damping"),
    [
        *(([1.0, 1.0, 1.0], None, False), ([1.0, 1.7, 6.0], None, True), ([1.0, 1.7, 6.0], 1, False)),
        *long(([1.0, 1.0, 1.0], None, True), ([1.0, 1.7, 6.0], None, False), ([1.0, 1.7, 6.0], 1, True)),
    ],
)
def test_in_a_fixed_order_it_is_the_numpy_reference(seconds, bound, damping):
    # Slices of 4, 3 and 3. The slow device holds a slice over several steps: nobody waits for it.
    expected, ages = reference(race(seconds, bound), batches(12), 3, damping)
    w, trainer = linear(cn.Asynchronous(bound, damping, order=race(seconds, bound)))
    history = trainer.fit(batches(12), progress=False, log_every=5)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
    found = history.records[-1].staleness
    assert found == {age: ages.count(age) for age in sorted(set(ages))}
    assert sum(found.values()) == 36
    if bound is not None:
        assert max(found) <= bound


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
    order = [Event(kind, i) for _ in range(3) for kind in ("read", "apply") for i in (2, 0, 1)]
    w, trainer = linear(cn.Asynchronous(order=order))
    for batch in batches(3):
        record = trainer.train_on_batch(*batch)
    expected, _ = reference(order, batches(3), 3)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
    assert record.staleness == {0: 3, 1: 3, 2: 3}


ONE = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5)),
    "average": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5, global_clipnorm=1.0),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=64.0),
}


@pytest.mark.parametrize("name", kept(ONE, "adam"))
def test_on_one_device_it_is_lockstep(name):
    found = []
    for sync in (None, cn.Asynchronous()):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.layers.Dense(8, activation="elu"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(1),
            ]
        )

        def loss(x, y, training, model=model):
            return tf.squeeze((model(x, training=training) - y) ** 2, axis=1), {"mean": tf.squeeze(y, 1)}

        trainer = cn.Trainer(
            loss,
            ONE[name](),
            devices=1,
            sync=sync,
            penalty=lambda model=model: 0.01 * tf.reduce_sum(model.layers[0].kernel ** 2),
        )
        data = [(x.astype("float32"), y.astype("float32")) for x, y in batches(8)]
        history = trainer.fit(iter(data[:5]), progress=False)
        trainer.train_on_batch(*data[5])
        trainer.fit(iter(data[6:]), progress=False)
        tested = trainer.evaluate((X.astype("float32"), Y.astype("float32")), batch_size=20)
        found.append(
            (
                [np.asarray(v) for v in model.variables],
                [np.asarray(v) for v in trainer.optimizer.variables],
                history.losses,
                [history.records[-1].metrics["mean"], tested.loss],
            )
        )
    for one, other in zip(found[0], found[1], strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-6, atol=1e-6)


def test_six_workers_each_pushing_1_move_the_weight_by_6():
    moved = {}
    for name, sync in {"asynchronous": cn.Asynchronous(), "synchronous": cn.Synchronous()}.items():
        w = tf.Variable(0.0)
        trainer = cn.Trainer(lambda x, w=w: -w * x, keras.optimizers.SGD(1.0), devices=6, sync=sync)
        trainer.train_on_batch(np.ones(6, "float32"))
        moved[name] = w.numpy()
    assert moved == {"asynchronous": 6.0, "synchronous": 1.0}


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


def test_a_smaller_last_batch_does_not_set_back_the_count():
    w = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.0)
    trainer = cn.Trainer(lambda x: w * x, optimizer, devices=3, sync=cn.Asynchronous())
    trainer.fit((np.ones(28, "float32"),), batch_size=6, log_every=1, progress=False)
    assert int(optimizer.iterations) == 5


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


def test_schedules_follow_global_steps_and_moments_count_updates():
    w = tf.Variable(0.0)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.0])
    # Adam moves by the rate if the gradient is always the same, and if it counts its moments rightly.
    trainer = cn.Trainer(lambda x: -w * x, keras.optimizers.Adam(schedule), devices=3, sync=cn.Asynchronous())
    rates = []
    for _ in range(6):
        trainer.train_on_batch(np.ones(3, "float32"))
        rates.append(float(trainer.optimizer.learning_rate))
    assert rates == [0.5, 0.5, 0.5, 0.0, 0.0, 0.0]
    assert int(trainer.optimizer.iterations) == 6
    assert w.numpy() == pytest.approx(4 * 3 * 0.5, rel=1e-4)  # steps 0 to 3, three updates each
    assert isinstance(trainer.optimizer.get_config()["learning_rate"], dict)  # the user's schedule is back


def poisoned(on_nan):
    w = tf.Variable(tf.ones([4, 1], tf.float64), name="weights")
    count = tf.Variable(0.0, trainable=False)

    def loss(x, y):
        count.assign_add(tf.cast(tf.reduce_sum(x) * 0 + 1, tf.float32))
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    # In turns, so that device 1 takes the second slice of every step.
    order = race([1.0, 1.0, 1.0], 0)
    sync = cn.Asynchronous(max_staleness=0, order=order)
    trainer = cn.Trainer(loss, keras.optimizers.SGD(RATE), devices=3, sync=sync, on_nan=on_nan)
    bad = X[:12].copy()
    bad[5] = np.nan
    return w, count, trainer, bad


def test_a_nan_names_device_step_and_variable_and_is_not_applied():
    w, count, trainer, bad = poisoned("stop")
    data = [*batches(3, 12), (bad, Y[:12]), *batches(2, 12)]
    with pytest.raises(cn.NotFinite) as caught:
        trainer.fit(iter(data), progress=False, log_every=100)
    assert (caught.value.device, caught.value.step) == ("/device:CPU:1", 4)
    assert caught.value.variable == "weights:0"
    assert trainer.step == 3
    assert np.isfinite(w.numpy()).all()
    assert np.isfinite(count.numpy())
    trainer.train_on_batch(X[:12], Y[:12])  # and it can go on
    assert trainer.step == 4


def test_skipping_a_nan_leaves_out_that_slice_alone():
    w, count, trainer, bad = poisoned("skip")
    good = list(batches(4, 12))
    history = trainer.fit(iter([*good[:2], (bad, Y[:12]), *good[2:]]), progress=False)
    assert history.records[-1].skipped == 1
    assert sum(history.records[-1].staleness.values()) == 14
    assert np.isfinite(count.numpy())
    v, _, clean, _ = poisoned("skip")
    clean.fit(iter(good[:2]), progress=False)
    for rows in (slice(0, 4), slice(8, 12)):
        x, y = X[:12][rows], Y[:12][rows]
        v.assign_sub(RATE * 2 * x.T @ (x @ v - y) / 4)
    clean.fit(iter(good[2:]), progress=False)
    np.testing.assert_allclose(w, v, rtol=0, atol=1e-13)


def test_skipping_ends_after_a_limit():
    _, _, trainer, bad = poisoned("skip")
    with pytest.raises(cn.NotFinite, match="in a row"):
        trainer.fit(((bad * np.nan, Y[:12]) for _ in range(60)), progress=False)


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


def test_an_error_of_the_data_stops_the_devices():
    _, trainer = linear(cn.Asynchronous())

    def failing():
        yield from batches(3)
        raise RuntimeError("no more data")

    with pytest.raises(tf.errors.OpError, match="no more data"):
        trainer.fit(failing(), progress=False)


@pytest.mark.parametrize("given", ["a generator", *long("a dataset", "a checkpoint")])
def test_what_came_before_an_error_of_the_data_is_trained_and_counted(tmp_path, given):
    """Every slice is one example, and moves a number of its own by 1."""
    examples, good = np.eye(80), 7
    counts = tf.Variable(np.zeros(80), name="counts")
    optimizer = keras.optimizers.SGD(1.0)
    trainer = cn.Trainer(lambda x: -tf.linalg.matvec(x, counts), optimizer, devices=4, sync=cn.Asynchronous())

    def generator():
        for i in range(good):
            yield (examples[4 * i :][:4],)
        raise ValueError("no more data")

    def batch(i):
        with tf.control_dependencies([tf.debugging.assert_less(i, good, "no more data")]):
            return tf.gather(examples, 4 * i + tf.range(4))

    for fit in range(1, 11):  # devices are at work on some slices when the data fail
        known = tf.data.Dataset.range(20).map(lambda i: batch(tf.cast(i, tf.int32)))
        data = known if given == "a dataset" else generator()
        checkpoint = None
        if given == "a checkpoint":
            checkpoint = cn.Checkpoint(tmp_path / str(fit), every=3, data="skip")
        with pytest.raises(tf.errors.InvalidArgumentError, match="no more data"):
            trainer.fit(data, checkpoint=checkpoint, progress=False)
        # Data that know their size are fetched some at a time, and of those that fail together none is taken.
        assert given == "a dataset" or trainer.step == good * fit
        assert counts.numpy().sum() == trainer.examples == 4 * trainer.step == sum(trainer.staleness.values())
        assert int(optimizer.iterations) == trainer.step > 0
    if given != "a dataset":
        assert counts.numpy().tolist() == [10.0] * 28 + [0.0] * 52


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


def test_a_gradient_is_unscaled_by_the_scale_that_it_was_computed_with():
    """The scale grows while devices compute; every push still moves by 1."""
    w = tf.Variable([0.0])
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(1.0), initial_scale=64.0, dynamic_growth_steps=2
    )
    optimizer.build([w])
    sync = cn.Asynchronous(order=race([1.0] * 4))
    trainer = cn.Trainer(lambda x: -w[0] * x, optimizer, devices=4, sync=sync, penalty=lambda: -w[0])
    for _ in range(6):
        trainer.train_on_batch(np.ones(4, "float32"))
    assert float(optimizer.dynamic_scale) == 64.0 * 2**12
    assert w.numpy() == [48.0]  # half of it is the penalty's


def test_numpy_integers_are_whole_numbers():
    _, trainer = linear(cn.Asynchronous(np.int64(1)))
    assert max(trainer.fit(batches(4), progress=False).records[-1].staleness) <= 1


def test_no_thread_tunes_the_data(monkeypatch):
    """Its end may take up to a minute."""
    seen = []

    def spy(dataset):
        seen.append(without_tuning(dataset).options().autotune.enabled)
        return dataset

    monkeypatch.setattr(fetch, "without_tuning", spy)
    _, trainer = linear(cn.Asynchronous())
    trainer.fit(batches(2), progress=False)
    assert seen == [False]


def test_twenty_skipped_steps_in_a_row_end_a_fit_wherever_its_log_lines_are():
    w = tf.Variable([1.0])
    trainer = cn.Trainer(
        lambda x: x * w[0], keras.optimizers.SGD(0.1), devices=2, sync=cn.Asynchronous(), on_nan="skip"
    )
    bad, good = np.full(2, np.nan, "float32"), np.ones(2, "float32")
    trainer.fit([good, *[bad] * 19, good], log_every=100, progress=False)
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        trainer.fit([good, *[bad] * 25, good], log_every=100, progress=False)


def test_a_dataset_of_unknown_rank_is_refused():
    _, trainer = linear(cn.Asynchronous())
    data = tf.data.Dataset.range(2).map(lambda i: tf.numpy_function(np.ones, [i], tf.float64))
    with pytest.raises(cn.InvalidArgument, match=r"data.*unknown rank"):
        trainer.fit(data.map(lambda x: (x, x)), progress=False)


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


def histograms(folder):
    """How many ages each histogram holds."""
    (events,) = folder.glob("events*")
    return [
        int(tf.make_ndarray(value.tensor)[:, 2].sum())
        for record in tf.data.TFRecordDataset(str(events))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
        if value.tag == "staleness"
    ]


def test_the_age_of_every_gradient_is_written(tmp_path):
    """In metrics.jsonl since the trainer was made, in a histogram since the one before."""
    _, trainer = linear(cn.Asynchronous(order=race([1.0] * 3)))
    for name, steps, counts, grown in (("a", 25, [30, 60, 75], [30, 30, 15]), ("b", 10, [105], [30])):
        history = trainer.fit(batches(steps), log_every=10, logdir=tmp_path / name, progress=False)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [sum(line["staleness"].values()) for line in lines] == counts
        assert {int(age): n for age, n in lines[-1]["staleness"].items()} == history.records[-1].staleness
        assert histograms(tmp_path / name) == grown


def test_batches_of_many_sizes_dicts_and_sparse_gradients():
    table = tf.Variable(RNG.normal(size=(10, 1)), name="table")
    start = table.numpy()

    def loss(batch):
        return tf.squeeze((tf.gather(table, batch["ids"]) - batch["a"]) ** 2, axis=1)

    trainer = cn.Trainer(
        loss, keras.optimizers.SGD(0.05), devices=4, sync=cn.Asynchronous(order=race([1.0] * 4, 0))
    )
    sizes = [7, 7, 1, 12, 7, 3]
    data = [{"ids": RNG.integers(0, 10, size), "a": RNG.normal(size=(size, 1))} for size in sizes]
    history = trainer.fit(iter(data), progress=False)
    assert trainer.examples == sum(sizes)
    assert sum(history.records[-1].staleness.values()) == 4 + 4 + 1 + 4 + 4 + 3
    expected = start.copy()
    for batch in data:
        for ids, a in zip(
            np.array_split(batch["ids"], min(4, len(batch["ids"]))),
            np.array_split(batch["a"], min(4, len(batch["ids"]))),
            strict=True,
        ):
            error = 2 * (expected[ids] - a) / len(ids)
            np.add.at(expected, ids, -float(np.float32(0.05)) * error)
    np.testing.assert_allclose(table, expected, rtol=0, atol=1e-12)


def test_weights_of_examples_and_a_slice_without_any():
    w = tf.Variable(START)
    mask = np.array([0.0, 0, 0, 0, 1, 1, 0, 1, 0.5, 0.25])
    trainer = cn.Trainer(
        lambda x, y, m: cn.Weighted(tf.squeeze((x @ w - y) ** 2, axis=1), m),
        keras.optimizers.SGD(RATE),
        devices=3,
        sync=cn.Asynchronous(order=[Event(k, i) for k in ("read", "apply") for i in range(3)]),
    )
    record = trainer.train_on_batch(X[:10], Y[:10], mask)
    expected = START
    for rows in (slice(4, 7), slice(7, 10)):
        x, y, m = X[rows], Y[rows], mask[rows, None]
        expected = expected - RATE * 2 * x.T @ (m * (x @ START - y)) / m.sum()
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
    losses = ((X[:10] @ START - Y[:10]) ** 2)[:, 0]
    assert record.loss == pytest.approx((losses * mask).sum() / mask.sum())


def test_moving_averages_are_those_of_the_devices_that_worked():
    norm = keras.layers.BatchNormalization(momentum=0.0, dtype="float64")
    head = keras.layers.Dense(1, dtype="float64")
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((head(norm(x, training=True)) - y) ** 2, axis=1),
        keras.optimizers.SGD(0.0),
        devices=4,
        sync=cn.Asynchronous(
            order=[Event(k, i) for _ in range(2) for k in ("read", "apply") for i in (0, 1)]
        ),
    )
    trainer.train_on_batch(X[:40], Y[:40])
    means = [part.mean(axis=0) for part in np.array_split(X[:40], 4)]
    # Devices 0 and 1 took all slices in turn; with a momentum of 0 only the last of each counts.
    np.testing.assert_allclose(norm.moving_mean, (means[2] + means[3]) / 2, atol=1e-6)


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
        ([Event("read", 0)], None, "are left at the end of the order"),
        ([Event("read", 0), Event("read", 0)], None, "before the device has applied"),
        ([Event("read", 0), Event("read", 1)], 0, "max_staleness lets the device wait"),
        ([("write", 0)], None, "a read or an apply"),
        ([Event("read", 7)], None, "one of the devices"),
        (["read"], None, "a read or an apply"),
        ([3], None, "a read or an apply"),
    ],
)
def test_orders_that_cannot_be(order, bound, says):
    _, trainer = linear(cn.Asynchronous(bound, order=order))
    with pytest.raises(cn.InvalidArgument, match=says):
        trainer.train_on_batch(X, Y)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cn.Asynchronous(max_staleness=-1), "max_staleness=-1"),
        (lambda: cn.Asynchronous(damping=2), "damping=2"),
        (lambda: cn.Asynchronous(order=3), "order=3"),
        (
            lambda: linear(
                cn.Asynchronous(damping=True),
                optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE, use_ema=True)),
            ),
            "damping=True: does not go with an optimizer that has use_ema=True",
        ),
        (lambda: linear(cn.Asynchronous(), variables="mirrored"), "has no meaning with Asynchronous"),
        (lambda: linear(cn.Asynchronous(), variables="partitioned"), "has no meaning with Asynchronous"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("sync", "rate"),
    [
        (cn.Synchronous(), 0.5),
        (cn.Asynchronous(), 0.1),
        *long((cn.Asynchronous(max_staleness=1), 0.1), (cn.LocalSGD(8), 0.5)),
        *long((cn.DiLoCo(16), 0.2), (cn.Elastic(4, 0.2), 0.5)),
    ],
    ids=["synchronous", "asynchronous", "staleness 1", "local", "diloco", "elastic"],
)
def test_every_mode_reaches_the_same_accuracy_on_digits(sync, rate):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])

    def loss(x, y):
        logits = model(x)
        losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(y, logits)}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(rate), devices=3, sync=sync)
    history = trainer.fit((x[:1440], y[:1440]), batch_size=48, steps=300, progress=False)
    tested = trainer.evaluate((x[1440:], y[1440:]), batch_size=100)
    assert tested.metrics["accuracy"] > 0.85, (tested, history.records[-1])
    assert bool(history.records[-1].staleness) == isinstance(sync, cn.Asynchronous)


def test_islice_of_a_race_is_an_order_too():
    w, trainer = linear(cn.Asynchronous(order=list(islice(race([1.0, 2.0, 3.0]), 100))))
    trainer.fit(batches(4), progress=False)
    expected, _ = reference(race([1.0, 2.0, 3.0]), batches(4), 3)
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)


def test_data_that_come_slower_than_they_are_taken_do_not_hold_up_the_main_thread():
    """The queue is empty whenever it is looked at; the main thread gives a few batches and goes on."""
    given = []
    run = Run.__new__(Run)
    run._engine = SimpleNamespace(devices=("CPU:0", "CPU:1"), steps=0, made=0)
    run._crew = SimpleNamespace(waiting=0, give=given.append)
    run._batches = ((None, [[]]) for _ in count())
    run._left, run._open, run._complete, run._numbers = math.inf, deque(), deque(), Numbers()
    run._failed = None
    run._few = 2
    run._feed()
    assert len(given) == 4
    run._crew.waiting = 3  # enough for now
    run._feed()
    assert len(given) == 4
