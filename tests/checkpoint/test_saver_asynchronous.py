"""Checkpoints of asynchronous training, which stands still for a moment to be saved."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn

EXAMPLES = np.eye(24, dtype="float64")


def counting(devices=4, **options):
    """Every use of an example moves a number of its own by 1, if a slice is a single example."""
    keras.backend.clear_session()
    counts = tf.Variable(np.zeros(24), name="counts")
    trainer = cn.Trainer(
        lambda x: -tf.linalg.matvec(x, counts),
        keras.optimizers.SGD(1.0),
        devices=devices,
        sync=cn.Asynchronous(**options),
    )
    return counts, trainer


def data(batch_size=4):
    return tf.data.Dataset.from_tensor_slices((EXAMPLES,)).shuffle(24).batch(batch_size)


def fit(trainer, folder, **options):
    checkpoint = cn.Checkpoint(folder, every=2, keep=None)
    return trainer.fit(data(), epochs=3, checkpoint=checkpoint, progress=False, **options)


def saved(folder, name):
    """By step, a value in every checkpoint."""
    paths = sorted(folder.glob("step-*"))
    return {
        int(path.name.removeprefix("step-")): tf.train.load_checkpoint(str(path / "values")).get_tensor(name)
        for path in paths
    }


def noisy(steps, folder=None):
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([24]), layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.3)]
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    trainer = cn.Trainer(
        lambda x: tf.reduce_sum(model(x, training=True) ** 2, axis=1),
        keras.optimizers.Adam(schedule),
        devices=1,
        sync=cn.Asynchronous(),
    )
    checkpoint = cn.Checkpoint(folder, every=3) if folder else None
    history = trainer.fit(
        data().map(lambda x: tf.cast(x, tf.float32)),
        epochs=3,
        steps=steps,
        checkpoint=checkpoint,
        progress=False,
    )
    return history, {name: np.asarray(v) for name, v in trainer._engine.state().variables().items()}


@pytest.mark.long
def test_on_one_device_a_run_that_was_cut_off_ends_bit_for_bit_like_one_that_was_not(tmp_path):
    whole, wanted = noisy(18)
    noisy(8, tmp_path)
    resumed, found = noisy(18, tmp_path)
    assert resumed.resumed == 8
    assert resumed.losses == whole.losses[8:]
    assert [name for name in wanted if not np.array_equal(wanted[name], found[name])] == []
    assert found.keys() == wanted.keys()


@pytest.mark.parametrize("bound", [*long(None), 1])
def test_no_update_is_lost_or_made_twice(tmp_path, bound):
    counts, first = counting(max_staleness=bound)
    fit(first, tmp_path, steps=7)
    assert counts.numpy().sum() == 28
    counts, second = counting(max_staleness=bound)
    history = fit(second, tmp_path)
    assert (history.resumed, second.step, second.examples) == (7, 18, 72)
    # Three epochs, each example once in each of them.
    assert counts.numpy().tolist() == [3.0] * 24
    assert sum(history.records[-1].staleness.values()) == 72
    assert int(second.optimizer.iterations) == 18


def test_a_save_is_never_in_the_middle_of_a_step(tmp_path):
    fit(counting()[1], tmp_path)
    found = saved(tmp_path, "parameters/counts")
    assert list(found) == list(range(2, 19, 2))
    assert {step: value.sum() for step, value in found.items()} == {step: 4.0 * step for step in found}


def test_a_signal_lets_what_was_begun_be_finished_and_saved(tmp_path):
    counts, trainer = counting()

    def told(record):
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as left:
        fit(trainer, tmp_path, log_every=1, callbacks=[told])
    assert left.value.code == 75
    last = max(saved(tmp_path, "parameters/counts"))
    assert last >= 3
    assert counts.numpy().sum() == 4 * last
    counts, second = counting()
    assert fit(second, tmp_path).resumed == last
    assert counts.numpy().tolist() == [3.0] * 24


@pytest.mark.long
def test_on_another_number_of_devices_the_stored_values_are_the_same(tmp_path):
    fit(counting(4)[1], tmp_path, steps=5)
    (value,) = [v for step, v in saved(tmp_path, "parameters/counts").items() if step == 5]
    counts, other = counting(2)
    fit(other, tmp_path, steps=5)
    assert np.array_equal(counts, value)
    fit(counting(2)[1], tmp_path)
    assert saved(tmp_path, "parameters/counts")[18].sum() == 20 + 13 * 2


def test_a_fixed_order_begins_again_and_that_is_said(tmp_path):
    order = [event for _ in range(100) for event in (("read", 0), ("apply", 0))]
    with pytest.warns(UserWarning, match="the order of reads and updates begins again"):
        fit(counting(1, order=order)[1], tmp_path, steps=3)
