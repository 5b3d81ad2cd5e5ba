"""A training that is saved and goes on as if nothing had been."""

import contextlib
import os
import re
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from fresh import COMMAND, run
from saves import X, Y, assert_same, batches, everything, linear, saved, steps_in

import colonnade as cn
from colonnade.run.checkpoint import saver


def noisy(variables, steps, folder=None):
    """Everything that a training has to remember: averages, two kinds of generators, slots, a schedule."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(3)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input([4]), layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(1)]
    )
    generator = tf.random.Generator.from_seed(7)

    def loss(x, y):
        return tf.squeeze((model(x, training=True) + generator.normal(tf.shape(y)) / 10 - y) ** 2, axis=1)

    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    optimizer = keras.optimizers.Adam(schedule, use_ema=True)
    trainer = cn.Trainer(loss, optimizer, devices=3, variables=variables)
    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(50).batch(10)
    checkpoint = saved(folder, every=7) if folder else None
    history = trainer.fit(data, steps=steps, epochs=4, checkpoint=checkpoint, progress=False)
    return history, everything(trainer)


@pytest.mark.long
@pytest.mark.parametrize("variables", ["mirrored", "shared", "partitioned"])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(tmp_path, variables):
    whole, wanted = noisy(variables, 30)
    noisy(variables, 10, tmp_path)  # 10 is between two rounds of the shuffle, for the next batch is the last
    resumed, found = noisy(variables, 30, tmp_path)
    assert resumed.resumed == 10
    assert resumed.losses == whole.losses[10:]
    assert_same(found, wanted)
    assert any(name.startswith("replicas/2/") for name in found)
    assert steps_in(tmp_path) == [7, 10, 14, 21, 28, 30]


def test_a_damaged_step_is_named_and_the_one_before_is_used(tmp_path):
    wanted, whole = linear()
    whole.fit(batches(), steps=12, epochs=2, progress=False)
    _, trainer = linear()
    trainer.fit(batches(), steps=8, epochs=2, checkpoint=saved(tmp_path), progress=False)
    values = tmp_path / "step-000000000008" / "values.data-00000-of-00001"
    flipped = bytearray(values.read_bytes())
    flipped[3] ^= 4
    values.write_bytes(flipped)
    w, again = linear()
    with pytest.warns(UserWarning, match=r"step-000000000008 is damaged: values\.data.*goes on from step 4"):
        history = again.fit(batches(), steps=12, epochs=2, checkpoint=saved(tmp_path), progress=False)
    assert history.resumed == 4
    assert np.array_equal(w, wanted)
    done = run([COMMAND, "checkpoints", str(tmp_path), "--verify"])
    assert done.returncode == 1
    assert re.findall(r"(\d+) │.*(whole|damaged: values\.data)", done.stdout) == [
        ("4", "whole"),
        ("8", "whole"),
        ("8", "damaged: values.data"),
        ("12", "whole"),
    ]
    for path in tmp_path.glob("step-*[0-9]"):
        (path / "manifest.json").write_text("{}")
    _, lost = linear()
    with pytest.raises(
        cn.DamagedCheckpoint, match=r"step-000000000004: manifest\.json does not have"
    ) as error:
        lost.fit(batches(), steps=12, epochs=2, checkpoint=saved(tmp_path), progress=False)
    assert len(error.value.flaws) == 3


@pytest.mark.long
def test_a_program_with_several_fits_finds_its_place(tmp_path):
    def program(folder, fits, last=None):
        w, trainer = linear()
        data = batches()
        histories = []
        for number in range(fits):
            steps = last if number == fits - 1 else None
            checkpoint = saved(folder, every=5) if folder else None
            histories.append(trainer.fit(data, epochs=1, steps=steps, checkpoint=checkpoint, progress=False))
        return w.numpy(), histories

    wanted, _ = program(None, 3)
    program(tmp_path, 2, last=4)  # ends in its second fit
    found, histories = program(tmp_path, 3)
    assert [(h.resumed, len(h.losses)) for h in histories] == [(15, 0), (15, 7), (None, 11)]
    assert np.array_equal(found, wanted)


def test_what_ended_a_fit_is_remembered(tmp_path):
    def stop(record):
        return record.step == 4

    for expected in (None, 4):
        _, trainer = linear()
        said = pytest.warns(UserWarning, match="A callback ended this fit at step 4, and it stays ended")
        with said if expected else contextlib.nullcontext():
            history = trainer.fit(
                batches(), epochs=2, log_every=1, callbacks=[stop], checkpoint=saved(tmp_path), progress=False
            )
        assert (trainer.step, history.resumed) == (4, expected)
    assert history.records[-1].loss != 0.0
    _, other = linear()
    with pytest.raises(cn.InvalidArgument, match=r"epochs=3: the run was begun with epochs=2"):
        other.fit(batches(), epochs=3, checkpoint=saved(tmp_path), progress=False)
    with pytest.raises(cn.InvalidArgument, match="has another structure than at step 4"):
        other.fit(batches().map(lambda x, y: (x, y, y)), epochs=2, checkpoint=saved(tmp_path), progress=False)


@pytest.mark.long
def test_local_training_does_not_wait_long_for_a_join(tmp_path, monkeypatch):
    """A scheduler waits for 30 seconds, and the next join may be far away."""
    monkeypatch.setattr(saver, "PATIENCE", 0.2)

    def fit(steps, folder=None, told=None):
        _, trainer = linear(sync=cn.LocalSGD(1000))
        trainer.fit(
            batches().repeat(),
            steps=steps,
            log_every=1,
            callbacks=[told] if told else [],
            checkpoint=saved(folder) if folder else None,
            progress=False,
        )
        return everything(trainer)

    def told(record):
        if record.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)

    with pytest.raises(SystemExit) as left:
        fit(1000, tmp_path, told)
    assert left.value.code == 75
    (step,) = steps_in(tmp_path)
    assert 5 < step < 60
    assert_same(fit(60, tmp_path), fit(60))


def test_seeded_legacy_random_numbers_are_said_to_be_lost(tmp_path):
    tf.random.set_seed(1)
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze(tf.nn.dropout(x @ w, 0.5) - y, axis=1),
        keras.optimizers.SGD(0.01, name="sgd"),
        devices=2,
    )
    with pytest.warns(UserWarning, match=r"will not be the same.*tf\.random ops"):
        trainer.fit(batches(), steps=2, checkpoint=saved(tmp_path), progress=False)
