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
from numpy_local import RATE, START, X, Y, averaged, batches, gradient, linear, numpy_local, trained

import colonnade as cn
from colonnade.run.checkpoint.directory import Archive
from colonnade.run.memory import estimate as estimates
from colonnade.run.memory.dry_run import Bytes, JobMemory

OPTIMIZERS = {
    "plain": lambda: keras.optimizers.SGD(RATE),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(RATE, 2, 0.7)),
}

RNG = np.random.default_rng(1)


@pytest.mark.sampled(3)
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


@pytest.mark.long
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


@pytest.mark.sampled(3)
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


@pytest.mark.long
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


@pytest.mark.long
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


def test_the_state_of_a_scalar_parameter_is_shown_as_the_mean_and_a_rate_as_it_is():
    w = tf.Variable(0.0)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.0)  # the average is the weight
    trainer = cn.Trainer(lambda x: -10 * w * x, optimizer, devices=3, sync=cn.LocalSGD(8))
    trainer.train_on_batch(np.array([1.0, 3.0, 5.0], "float32"))
    (average,) = [float(v) for v in optimizer.variables if "average" in v.path]
    assert average == w.numpy() == 3.0
    assert optimizer.learning_rate.numpy() == np.float32(0.1)


def test_what_is_not_a_number_is_not_taken_for_something_that_the_user_assigned():
    """Replicas have moving averages of their own between joins, whoever looks at them."""

    def trained_by(steps):
        w, average = tf.Variable(START), tf.Variable([np.nan, 0.0], trainable=False, dtype=tf.float64)

        def loss(x, y):
            average.assign([average[0], 0.5 * average[1] + tf.reduce_mean(y) ** 2])
            return tf.squeeze((x @ w - y) ** 2, axis=1) * average[1]

        trainer = cn.Trainer(loss, keras.optimizers.SGD(RATE), devices=2, sync=cn.LocalSGD(4))
        steps(trainer, [(tf.constant(x), tf.constant(y)) for x, y in batches(4)])
        return w.numpy()

    one = trained_by(lambda trainer, data: trainer.fit(iter(data), progress=False, prove=False))
    other = trained_by(lambda trainer, data: [trainer.train_on_batch(*batch) for batch in data])
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


def test_a_replica_without_work_has_what_an_optimizer_makes_of_the_number_of_steps():
    """Nadam's product of momenta is such a number; with that of fewer steps its next step would be wrong."""
    _, trainer = linear(cn.LocalSGD(100), optimizer=keras.optimizers.Nadam(RATE), devices=2)
    for size in (4, 1, 1, 4):
        trainer.train_on_batch(X[:size], Y[:size])
    alone, nadam = tf.Variable(START), keras.optimizers.Nadam(RATE)
    nadam.build([alone])
    moved = [v for v in (alone, *nadam.variables) if v.shape == alone.shape]
    for works in (True, False, False, True):
        before = [variable.numpy() for variable in moved]
        nadam.apply([tf.constant(gradient(alone.numpy(), X[2:4], Y[2:4]))], [alone])
        for variable, value in zip(moved, before, strict=True):
            if not works:
                variable.assign(value)
    np.testing.assert_allclose(trainer.replicas()[1][0], alone.numpy(), rtol=0, atol=1e-13)


def test_a_replica_without_work_cannot_accumulate():
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2)
    _, trainer = linear(cn.LocalSGD(2), optimizer=optimizer, devices=3)
    trainer.train_on_batch(X[:3], Y[:3])
    with pytest.raises(cn.InvalidArgument, match="this batch has some for 2"):
        trainer.train_on_batch(X[:2], Y[:2])


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


def test_what_only_the_penalty_reads_is_saved_and_read_back(tmp_path):
    def trained_to(steps, folder):
        keras.backend.clear_session()
        w, rate = tf.Variable(START, name="w"), tf.Variable(np.float64(0.1), trainable=False, name="rate")
        trainer = cn.Trainer(
            lambda x, y: tf.squeeze((x @ w - y) ** 2, axis=1),
            keras.optimizers.SGD(RATE),
            devices=2,
            sync=cn.LocalSGD(2),
            penalty=lambda: rate * tf.reduce_sum(w**2),
        )
        raised = [lambda record: rate.assign(0.5) if record.step == 2 else None]
        saved = cn.Checkpoint(folder, every=100)
        trainer.fit((X, Y), batch_size=6, steps=steps, checkpoint=saved, callbacks=raised, log_every=2)
        return w.numpy()

    unbroken = trained_to(8, tmp_path / "one")
    trained_to(4, tmp_path / "other")
    np.testing.assert_array_equal(trained_to(8, tmp_path / "other"), unbroken)


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
    monkeypatch.setattr(estimates, "dry_run", lambda _: [JobMemory((Bytes(0, 3000, 32),))])
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


@pytest.mark.sampled(3)
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
