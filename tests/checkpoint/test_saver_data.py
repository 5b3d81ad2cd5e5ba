"""The place in the data is saved with a training: every example counts as often as if nothing had been."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from saves import X, Y, batches, linear, saved, steps_in

import colonnade as cn


@pytest.mark.long  # `killed.py` has such a shuffle too
@pytest.mark.parametrize("stops", [(11, 23), (5, 10, 21, 22)])
def test_a_repeated_shuffle_of_the_users_goes_on_exactly_too(tmp_path, stops):
    """Also between two rounds, where TensorFlow's iterator does not tell all of its state."""

    def fit(folder, steps):
        w, trainer = linear()
        data = batches().repeat()
        checkpoint = saved(folder, every=1) if folder else None
        trainer.fit(data, steps=steps, checkpoint=checkpoint, log_every=1, progress=False)
        return w.numpy()

    wanted = fit(None, 36)
    fit(tmp_path, 23)
    assert steps_in(tmp_path) == list(range(1, 24))
    for step in stops:
        copy = tmp_path.parent / f"{tmp_path.name}-{step}"
        copy.mkdir()
        shutil.copytree(tmp_path / f"step-{step:012d}", copy / f"step-{step:012d}")
        assert np.array_equal(fit(copy, 36), wanted), step


def counted(data, folder, steps=None, **options):
    """How often a training has seen each of 103 examples."""
    w = tf.Variable(0.0, name="w")
    seen = tf.Variable(tf.zeros(103, "int32"), trainable=False, name="seen")

    def loss(ids):
        seen.assign(tf.tensor_scatter_nd_add(seen, ids[:, None], tf.ones_like(ids)))
        return w * tf.cast(ids, "float32")

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0, name="sgd"), devices=1)
    trainer.fit(data, steps=steps, checkpoint=saved(folder, every=50), progress=False, **options)
    return seen.numpy()


IDS = tf.data.Dataset.from_tensor_slices(np.arange(103, dtype="int32"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stop", [10, 17, *long(3, 7, 11, 22)])
def test_every_example_counts_once_per_epoch(tmp_path, stop):
    """Without any seed, wherever the run was cut: the batch that was fetched ahead is not lost."""

    def data():
        return IDS.shuffle(50).batch(10)

    assert counted(data(), tmp_path, stop, epochs=3).sum() == 10 * stop - 7 * (stop // 11)  # the last has 3
    assert counted(data(), tmp_path, epochs=3).tolist() == [3] * 103


@pytest.mark.parametrize("stop", [22, *long(8, 17)])
def test_every_example_counts_once_per_round_of_a_repeated_shuffle(tmp_path, stop):
    def data():
        return IDS.shuffle(50).batch(10).repeat(3)

    counted(data(), tmp_path, stop)
    assert counted(data(), tmp_path, 33).tolist() == [3] * 103


def test_what_comes_in_an_order_of_the_moment_is_kept_with_its_buffers(tmp_path):
    options = tf.data.Options()
    options.deterministic = False

    def data():
        slow = IDS.map(lambda i: (tf.strings.length(tf.strings.as_string(i)), i)[1], num_parallel_calls=4)
        return slow.shuffle(50).batch(10).with_options(options)

    counted(data(), tmp_path, 15, epochs=3)
    assert "iterator" in bundle(tmp_path / "step-000000000015")
    assert counted(data(), tmp_path, epochs=3).tolist() == [3] * 103


def bundle(folder):
    return tf.train.load_checkpoint(str(folder / "data")).get_variable_to_shape_map()


def test_a_shuffle_buffer_is_not_saved(tmp_path):
    """What a save costs does not grow with it."""
    wide = tf.data.Dataset.from_tensor_slices(np.zeros((1000, 1000), "float32"))
    w = tf.Variable(tf.zeros([1000, 1]), name="w")
    trainer = cn.Trainer(lambda x: (x @ w)[:, 0], keras.optimizers.SGD(0.0, name="sgd"), devices=2)
    trainer.fit(wide.shuffle(1000).batch(8), steps=3, checkpoint=saved(tmp_path), progress=False)
    assert sum(path.stat().st_size for path in tmp_path.glob("step-*/data.*")) < 300_000
    assert "iterator" not in bundle(tmp_path / "step-000000000003")


def test_other_data_are_refused(tmp_path):
    counted(IDS.batch(10), tmp_path, 5, epochs=1)
    backwards = tf.data.Dataset.from_tensor_slices(np.arange(103, dtype="int32")[::-1])
    with pytest.raises(cn.InvalidArgument, match=r"did not give the batches again.*the data are others"):
        counted(backwards.batch(10), tmp_path, epochs=1)
    with pytest.raises(cn.InvalidArgument, match=r"data='10 batches': had 11 at step 5"):
        counted(IDS.take(95).batch(10), tmp_path, epochs=1)


def test_arrays_go_on(tmp_path):
    whole, trainer = linear()
    trainer.fit((X, Y), batch_size=16, steps=20, progress=False)
    for steps in (9, 20):
        w, again = linear()
        again.fit((X, Y), batch_size=16, steps=steps, checkpoint=saved(tmp_path), progress=False)
    assert np.array_equal(w, whole)
    assert again.examples == trainer.examples


def test_a_generator_needs_a_choice(tmp_path):
    def generator():
        for i in range(0, 100, 10):
            yield X[i : i + 10], Y[i : i + 10]

    _, trainer = linear()
    with pytest.raises(cn.InvalidArgument, match=r'the place in it cannot be saved.*"skip".*"restart"'):
        trainer.fit(generator(), checkpoint=saved(tmp_path))
    assert steps_in(tmp_path) == []
    wanted, whole = linear()
    whole.fit(generator(), progress=False)
    for steps in (6, None):
        w, again = linear()
        again.fit(generator(), steps=steps, checkpoint=saved(tmp_path, data="skip"), progress=False)
    assert np.array_equal(w, wanted)
    _, finished = linear()
    history = finished.fit(generator(), checkpoint=saved(tmp_path, data="skip"), progress=False)
    assert (history.resumed, history.losses, finished.step) == (10, [], 10)
    _, restarted = linear()
    restarted.fit(generator(), steps=13, checkpoint=saved(tmp_path, data="restart"), progress=False)
    assert restarted.step == 13
    _, exact = linear()
    with pytest.raises(cn.InvalidArgument, match="was saved with data='restart'"):
        exact.fit(batches(), steps=13, checkpoint=saved(tmp_path), progress=False)


def test_a_dataset_with_a_hidden_state_needs_a_choice(tmp_path):
    _, trainer = linear()
    data = batches().map(lambda x, y: (x + tf.random.normal(tf.shape(x)), y))
    with pytest.raises(cn.InvalidArgument, match=r'is stateful.*"skip".*"restart"'):
        trainer.fit(data, checkpoint=saved(tmp_path), progress=False)
    assert (trainer.step, steps_in(tmp_path)) == (0, [])
