"""Batches of many kinds, fetched and cut; and what becomes of those before an error of the data."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from numpy_async import batches, linear

import colonnade as cn
from colonnade.reason.simulator.staleness import race
from colonnade.run.asynchronous import fetch
from colonnade.run.data.batches import without_tuning

RNG = np.random.default_rng(1)


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


def test_a_dataset_of_unknown_rank_is_refused():
    _, trainer = linear(cn.Asynchronous())
    data = tf.data.Dataset.range(2).map(lambda i: tf.numpy_function(np.ones, [i], tf.float64))
    with pytest.raises(cn.InvalidArgument, match=r"data.*unknown rank"):
        trainer.fit(data.map(lambda x: (x, x)), progress=False)


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
