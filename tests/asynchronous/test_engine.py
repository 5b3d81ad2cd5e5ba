"""Asynchronous training: in a fixed order against NumPy, with real threads by what must hold in any order."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long
from numpy_async import RATE, X, Y, batches, linear, reference

import colonnade as cn
from colonnade.reason.simulator.staleness import ReadOrApply, race


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


def test_moving_averages_are_those_of_the_devices_that_worked():
    norm = keras.layers.BatchNormalization(momentum=0.0, dtype="float64")
    head = keras.layers.Dense(1, dtype="float64")
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((head(norm(x, training=True)) - y) ** 2, axis=1),
        keras.optimizers.SGD(0.0),
        devices=4,
        sync=cn.Asynchronous(
            order=[ReadOrApply(k, i) for _ in range(2) for k in ("read", "apply") for i in (0, 1)]
        ),
    )
    trainer.train_on_batch(X[:40], Y[:40])
    means = [part.mean(axis=0) for part in np.array_split(X[:40], 4)]
    # Devices 0 and 1 took all slices in turn; with a momentum of 0 only the last of each counts.
    np.testing.assert_allclose(norm.moving_mean, (means[2] + means[3]) / 2, atol=1e-6)


def test_going_on_averages_over_the_devices_that_worked_before(tmp_path):
    """Two of four devices have never had a slice; what they keep is what the average began with."""
    order = [ReadOrApply(k, i) for _ in range(2) for k in ("read", "apply") for i in (0, 1)]
    data = tf.data.Dataset.from_tensor_slices((X[:40], Y[:40])).batch(40)
    shown = []
    for _ in range(2):
        keras.utils.clear_session()  # the same names again
        norm = keras.layers.BatchNormalization(momentum=0.0, dtype="float64", name="norm")
        head = keras.layers.Dense(1, dtype="float64", name="head")
        trainer = cn.Trainer(
            lambda x, y, norm=norm, head=head: tf.squeeze((head(norm(x, training=True)) - y) ** 2, axis=1),
            keras.optimizers.SGD(0.0),
            devices=4,
            sync=cn.Asynchronous(order=order),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the order begins again
            trainer.fit(data, steps=1, checkpoint=cn.Checkpoint(tmp_path / "saved", every=1), progress=False)
        shown.append(norm.moving_mean.numpy())
    assert np.abs(shown[0]).max() > 0
    np.testing.assert_allclose(*shown)
