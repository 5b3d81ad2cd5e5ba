"""Local SGD, DiLoCo and elastic averaging, against NumPy and against synchronous training.

In float64 the tolerance leaves no room for anything but rounding.
"""

import os
import signal
import threading
from itertools import product

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long

import colonnade as cn
from colonnade.run.checkpoint.directory import Archive
from colonnade.run.memory import estimate as estimates
from colonnade.run.memory.dry_run import Bytes, Seen

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4))
Y = X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * RNG.normal(size=(48, 1))
START = np.linspace(-1, 1, 4)[:, None]
RATE = 0.0625  # exact in float32, in which Keras keeps it


def linear(sync, optimizer=None, devices=3, **options):
    w = tf.Variable(START, name="weights")

    def loss(x, y):
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    optimizer = optimizer or keras.optimizers.SGD(RATE)
    return w, cn.Trainer(loss, optimizer, devices=devices, sync=sync, **options)


def gradient(w, x, y):
    return 2 * x.T @ (x @ w - y) / len(x)


def batches(steps, size=24):
    for k in range(steps):
        rows = np.arange(k * size, (k + 1) * size) % len(X)
        yield X[rows], Y[rows]


def numpy_local(steps, devices, every, meet, size=24):
    """Local steps in NumPy; `meet(replicas, centre)` returns both after a join."""
    replicas, centre = [START] * devices, START
    for k, (x, y) in enumerate(batches(steps, size), start=1):
        slices = zip(np.array_split(x, devices), np.array_split(y, devices), strict=True)
        replicas = [w - RATE * gradient(w, *s) for w, s in zip(replicas, slices, strict=True)]
        if k % every == 0:
            replicas, centre = meet(replicas, centre)
    return replicas, centre


def trained(sync, steps, size=24, **options):
    w, trainer = linear(sync, **options)
    trainer.fit(batches(steps, size), progress=False, log_every=7)
    return w.numpy(), trainer


OPTIMIZERS = {
    "plain": lambda: keras.optimizers.SGD(RATE),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 2, 0.7)),
}


@pytest.mark.parametrize(
    ("size", "name"),  # even, uneven, fewer than devices
    kept(product((24, 22, 2), OPTIMIZERS), (24, "plain"), (22, "momentum"), (2, "schedule")),
)
def test_an_average_after_every_step_of_sgd_is_synchronous_training(name, size):
    """SGD moves in proportion to the gradient, so the mean of the moves is the move of the mean."""
    found = []
    for sync in (cn.Synchronous(), cn.LocalSGD(every=1)):
        w = tf.Variable(START)
        trainer = cn.Trainer(
            lambda x, y, w=w: tf.squeeze((x @ w - y) ** 2, axis=1),
            OPTIMIZERS[name](),
            devices=4,
            sync=sync,
            penalty=lambda w=w: 0.1 * tf.reduce_sum(w**2),
        )
        history = trainer.fit(batches(6, size), progress=False)
        found.append((w.numpy(), np.array(history.losses), int(trainer.optimizer.iterations)))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=0, atol=1e-13)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-6)  # float32 in the history
    assert found[1][2] == found[0][2] == 6


def test_with_adam_it_is_not():
    """Adam divides each replica's gradient by its own size: a mean of ratios is no ratio of means."""
    synchronous, _ = trained(None, 6, optimizer=keras.optimizers.Adam(0.05))
    local, _ = trained(cn.LocalSGD(1), 6, optimizer=keras.optimizers.Adam(0.05))
    assert np.abs(local - synchronous).max() > 1e-3


def averaged(replicas, _):
    mean = np.mean(replicas, axis=0)
    return [mean] * len(replicas), mean


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


def test_elastic_with_alpha_0_is_independent_workers():
    _, trainer = trained(cn.Elastic(every=2, alpha=0.0), 6, optimizer=keras.optimizers.Adam(0.05))
    for i, (own,) in enumerate(trainer.replicas()):
        alone, worker = linear(None, keras.optimizers.Adam(0.05), devices=1)
        for x, y in batches(6):
            worker.train_on_batch(np.array_split(x, 3)[i], np.array_split(y, 3)[i])
        np.testing.assert_allclose(own, alone.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("sync", [*long(cn.LocalSGD(4)), cn.DiLoCo(4), *long(cn.Elastic(4, 0.2))])
def test_steps_in_pieces_are_the_steps_in_one_fit(sync):
    """Between joins too: the replicas stay where they are, though the user's variables show the average."""
    whole, _ = trained(sync, 10, optimizer=keras.optimizers.Adam(0.05))
    w, trainer = linear(sync, keras.optimizers.Adam(0.05))
    data = list(batches(10))
    trainer.fit(iter(data[:3]), progress=False)
    trainer.train_on_batch(*data[3])
    trainer.train_on_batch(*data[4])
    trainer.evaluate((X, Y), batch_size=10)
    trainer.fit(iter(data[5:]), progress=False, log_every=2, callbacks=[lambda record: False])
    np.testing.assert_allclose(w, whole, rtol=0, atol=1e-13)


def test_evaluation_uses_the_average():
    replicas, _ = numpy_local(6, 3, 4, averaged)
    _, trainer = trained(cn.LocalSGD(4), 6)
    error = (X @ np.mean(replicas, axis=0) - Y)[:, 0]
    assert trainer.evaluate((X, Y), batch_size=17).loss == pytest.approx(np.mean(error**2), rel=1e-6)


@pytest.mark.parametrize("sync", [*long(cn.LocalSGD(4), cn.DiLoCo(4)), cn.Elastic(4, 0.2)])
def test_what_the_user_assigns_counts(sync):
    w, trainer = linear(sync)
    data = list(batches(5))
    trainer.fit(iter(data[:2]), progress=False)
    w.assign(START + 1)
    trainer.optimizer.learning_rate = 0.25
    trainer.train_on_batch(*data[2])
    expected = [
        START + 1 - 0.25 * gradient(START + 1, x, y)
        for x, y in zip(np.array_split(data[2][0], 3), np.array_split(data[2][1], 3), strict=True)
    ]
    for (own,), value in zip(trainer.replicas(), expected, strict=True):
        np.testing.assert_allclose(own, value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("sync", [cn.LocalSGD(4), cn.Elastic(4, 0.2), cn.Synchronous()])
def test_schedules_follow_global_steps(sync):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.1, 0.0])
    _, trainer = linear(sync, keras.optimizers.SGD(schedule), devices=4)
    data = list(batches(6, 2))  # two of the four devices have no work
    trainer.fit(iter(data[:4]), progress=False)
    assert int(trainer.optimizer.iterations) == 4
    assert float(trainer.optimizer.learning_rate) == 0.0
    before = trainer.replicas()
    trainer.train_on_batch(X[:24], Y[:24])  # now all four: none of them is behind
    for own, value in zip(trainer.replicas(), before, strict=True):
        np.testing.assert_array_equal(own[0], value[0])


def test_states_are_averaged_by_a_join_and_shown_in_between():
    norm = keras.layers.BatchNormalization(momentum=0.5, dtype="float64")
    head = keras.layers.Dense(1, dtype="float64")
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((head(norm(x, training=True)) - y) ** 2, axis=1),
        keras.optimizers.SGD(0.01),
        devices=2,
        sync=cn.LocalSGD(2),
    )
    own = [np.zeros(4), np.zeros(4)]
    for k, (x, y) in enumerate(batches(5), start=1):
        trainer.train_on_batch(x, y)
        own = [0.5 * m + 0.5 * s.mean(axis=0) for m, s in zip(own, np.array_split(x, 2), strict=True)]
        np.testing.assert_allclose(norm.moving_mean, np.mean(own, axis=0), atol=1e-6)
        if k % 2 == 0:
            own = [np.mean(own, axis=0)] * 2


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


@pytest.mark.parametrize("sync", [cn.LocalSGD(2), *long(cn.DiLoCo(2), cn.Elastic(2, 0.2))])
def test_a_sparse_gradient_and_a_variable_without_one(sync):
    ids = RNG.integers(0, 10, 24)
    table = tf.Variable(RNG.normal(size=(10, 1)), name="table")
    unused = tf.Variable(1.0, dtype=tf.float64)
    start = table.numpy()
    trainer = cn.Trainer(
        lambda i, y: tf.squeeze((tf.gather(table, i) + 0 * tf.stop_gradient(unused) - y) ** 2, 1),
        keras.optimizers.SGD(0.1),
        devices=3,
        sync=sync,
    )
    first = trainer.train_on_batch(ids, Y[:24]).loss
    for _ in range(5):
        last = trainer.train_on_batch(ids, Y[:24]).loss
    assert last < first
    assert not np.array_equal(table, start)
    assert unused.numpy() == 1.0


def poisoned(sync, on_nan):
    w = tf.Variable(tf.ones([4, 1], tf.float64), name="weights")
    count = tf.Variable(0.0, trainable=False)

    def loss(x, y):
        count.assign_add(1.0)
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01, momentum=0.9), devices=3, sync=sync, on_nan=on_nan)
    bad = X[:24].copy()
    bad[11] = np.nan  # device 1's
    return w, count, trainer, bad


LOCAL = [cn.LocalSGD(4), cn.DiLoCo(4), cn.Elastic(4, 0.2)]


@pytest.mark.parametrize("sync", [LOCAL[0], *long(*LOCAL[1:])])
def test_a_nan_names_device_step_and_variable_and_nothing_is_applied(sync):
    w, count, trainer, bad = poisoned(sync, "stop")
    data = [*batches(6), (bad, Y[:24]), *batches(2)]
    with pytest.raises(cn.NotFinite) as caught:
        trainer.fit(iter(data), progress=False, log_every=100)
    assert (caught.value.device, caught.value.step) == ("/device:CPU:1", 7)
    assert caught.value.variable == "weights:0"
    assert trainer.step == 6
    assert count.numpy() == 6.0
    clean = poisoned(sync, "stop")
    clean[2].fit(batches(6), progress=False)
    for own, value in zip(trainer.replicas(), clean[2].replicas(), strict=True):
        np.testing.assert_allclose(own[0], value[0], rtol=0, atol=1e-13)
    trainer.train_on_batch(X[:24], Y[:24])  # and it can go on
    assert np.isfinite(w.numpy()).all()


@pytest.mark.parametrize("sync", [*long(LOCAL[0]), LOCAL[1], *long(LOCAL[2])])
def test_skipping_a_nan_leaves_that_step_out_on_all_replicas(sync):
    w, count, trainer, bad = poisoned(sync, "skip")
    data = list(batches(5))
    history = trainer.fit(iter([*data[:2], (bad, Y[:24]), *data[2:]]), progress=False)
    assert history.records[-1].skipped == 1
    v, other, clean, _ = poisoned(sync, "skip")
    clean.fit(iter(data), progress=False)
    np.testing.assert_allclose(w, v, rtol=0, atol=1e-13)
    assert count.numpy() == other.numpy() == 5.0


def test_a_replica_that_raises_is_named():
    w = tf.Variable(1.0)

    def loss(x):
        tf.debugging.assert_less(x, 10.0)
        return w * x

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=3, sync=cn.LocalSGD(2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="CPU_1"):
        trainer.train_on_batch(tf.constant([1.0, 2.0, 11.0, 4.0, 5.0, 6.0]))


def test_ctrl_c_ends_the_fit_with_what_was_reached():
    _, trainer = linear(cn.LocalSGD(4))
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    history = trainer.fit((X, Y), batch_size=24, steps=10**7, progress=False)
    assert history.interrupted
    assert trainer.step == len(history.losses) > 0


def test_local_sgd_16_moves_a_sixteenth_of_the_bytes():
    counted = {}
    for name, sync in {"synchronous": cn.Synchronous(), "local": cn.LocalSGD(16)}.items():
        _, trainer = linear(sync, variables="mirrored", devices=4)
        trainer.train_on_batch(X[:24], Y[:24])
        counted[name] = trainer.traffic()
    assert counted["synchronous"] == 2 * 3 * 4 * 8  # to device 0 and back, 3 links, 4 float64
    assert counted["local"] == counted["synchronous"] / 16


def test_dropout_draws_a_stream_of_its_own_on_every_replica_and_repeats():
    def run():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
        trainer = cn.Trainer(
            lambda x, y: tf.squeeze((model(x, training=True) - y) ** 2, 1),
            keras.optimizers.Adam(0.01),
            devices=3,
            sync=cn.LocalSGD(3),
        )
        trainer.fit(((x.astype("float32"), y.astype("float32")) for x, y in batches(5)), progress=False)
        return np.concatenate([v.numpy().ravel() for v in model.trainable_variables]), trainer.replicas()

    (first, replicas), (again, _) = run(), run()
    assert np.array_equal(first, again)
    assert not np.array_equal(replicas[0][0], replicas[1][0])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cn.LocalSGD(0), "every=0: must be a whole number from 1 up"),
        (lambda: cn.LocalSGD(2, outer="sgd"), "outer='sgd': must be a Keras 3 optimizer"),
        (lambda: cn.DiLoCo(every=1.5), "every=1.5"),
        (lambda: cn.Elastic(True, 2), "alpha=2: must be a number from 0 to below 1"),
        (lambda: linear(cn.Elastic(2, 0.5), devices=4), "never settle. Try alpha=0.23"),
        (lambda: linear(cn.LocalSGD(2), variables="shared"), "has no meaning with LocalSGD"),
        (lambda: linear(cn.Elastic(2, 0.1), variables="partitioned"), "has no meaning with Elastic"),
        (lambda: linear(cn.LocalSGD), "must be a value such as"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.long
def test_numbers_of_numpy_are_numbers():
    local, _ = trained(cn.LocalSGD(np.int64(2)), 4)
    assert np.array_equal(local, trained(cn.LocalSGD(2), 4)[0])
    elastic, _ = trained(cn.Elastic(2, np.float32(0.25)), 4)
    assert np.array_equal(elastic, trained(cn.Elastic(2, 0.25), 4)[0])


def test_the_state_of_a_scalar_parameter_is_shown_as_the_mean_and_a_rate_as_it_is():
    w = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.0)  # the average is the weight
    trainer = cn.Trainer(lambda x: -10 * w * x, optimizer, devices=3, sync=cn.LocalSGD(8))
    trainer.train_on_batch(np.array([1.0, 3.0, 5.0], "float32"))
    (average,) = [float(v) for v in optimizer.variables if "average" in v.path]
    assert average == w.numpy() == 3.0
    assert optimizer.learning_rate.numpy() == np.float32(0.1)


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


def test_a_skipped_step_puts_joins_off_and_saves_with_them(tmp_path):
    _, _, trainer, bad = poisoned(cn.LocalSGD(4), "skip")
    good = list(batches(9))
    x, y = (np.stack(arrays) for arrays in zip(good[0], (bad, Y[:24]), *good[1:], strict=True))
    data = tf.data.Dataset.from_tensor_slices((x, y))
    checkpoint = cn.Checkpoint(tmp_path, every=4)
    joined = []

    def look(record):
        first, second, _ = (replica[0] for replica in trainer.replicas())
        if np.array_equal(first, second):
            joined.append(record.step)

    trainer.fit(data, log_every=1, progress=False, checkpoint=checkpoint, callbacks=[look])
    assert joined == [5, 9]
    assert [saved.step for saved in Archive(tmp_path).saved()] == [5, 9, 10]


@pytest.mark.parametrize("sync", [cn.LocalSGD(2), cn.Asynchronous()])
def test_layers_that_are_split_by_width_are_refused(sync):
    model = keras.Sequential([keras.Input([4]), cn.width.Dense(6, devices=2)])
    trainer = cn.Trainer(
        lambda x: tf.reduce_sum(model(x) ** 2, axis=1), keras.optimizers.SGD(0.1), devices=1, sync=sync
    )
    with pytest.raises(cn.InvalidArgument, match="split by width"):
        trainer.train_on_batch(X[:4].astype("float32"))


@pytest.mark.parametrize("sync", [cn.LocalSGD(2), cn.Asynchronous()])
def test_a_limit_of_memory_is_kept(sync, monkeypatch):
    w, trainer = linear(sync)
    monkeypatch.setattr(estimates, "rehearse", lambda _: [Seen((Bytes(0, 3000, 32),))])
    monkeypatch.setattr(estimates, "estimated_limit", lambda _: 2000)
    with pytest.raises(cn.InvalidArgument, match=r"memory.*is below the"):
        trainer.train_on_batch(X, Y)
    assert np.array_equal(w, START)


def test_synchronised_batch_norm_is_refused():
    norm = keras.layers.BatchNormalization(synchronized=True)
    head = keras.layers.Dense(1)
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((head(norm(x, training=True)) - y) ** 2, axis=1),
        keras.optimizers.SGD(0.01),
        devices=2,
        sync=cn.LocalSGD(2),
    )
    with pytest.raises(cn.InvalidArgument, match="synchronized=True"):
        trainer.train_on_batch(X.astype("float32"), Y.astype("float32"))


@pytest.mark.long
def test_an_outer_optimizer_is_not_shared_between_trainers():
    sync = cn.LocalSGD(2, outer=keras.optimizers.SGD(1.0, momentum=0.9))
    first, _ = trained(sync, 6)
    second, _ = trained(sync, 6)
    np.testing.assert_array_equal(first, second)
    assert not sync.outer.built


@pytest.mark.parametrize(
    ("first", "sync"),
    [
        *((8, cn.LocalSGD(4)), (6, cn.DiLoCo(4)), (6, cn.Elastic(4, 0.2))),
        *long((6, cn.LocalSGD(4)), (8, cn.DiLoCo(4)), (8, cn.Elastic(4, 0.2))),
    ],
    ids=str,
)
def test_goes_on_from_a_checkpoint_bit_for_bit(tmp_path, sync, first):
    """Also from a step between two joins, where a fit has ended; the slices are uneven."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(70, 3)).astype("float32"), rng.normal(size=(70, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5).repeat()

    def trained(*ends, devices=2, checkpoint=None):
        for end in ends:
            w = tf.Variable(np.ones((3, 1), "float32"), name="w")
            trainer = cn.Trainer(
                lambda x, y, w=w: tf.squeeze((x @ w - y) ** 2, axis=1),
                keras.optimizers.Adam(0.1, name="adam"),
                devices=devices,
                sync=sync,
            )
            trainer.fit(data, steps=end, progress=False, checkpoint=checkpoint)
        return trainer

    checkpoint = cn.Checkpoint(tmp_path, every=4)
    broken, whole = trained(first, 12, checkpoint=checkpoint), trained(12)
    assert broken.step == whole.step == 12
    for one, other in zip(broken.replicas(), whole.replicas(), strict=True):
        assert np.array_equal(one[0], other[0])
    with pytest.warns(UserWarning, match="Saved on 2 devices, it goes on on 3"):
        other = trained(16, devices=3, checkpoint=checkpoint)
    assert other.step == 16
