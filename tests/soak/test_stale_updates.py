"""Eight devices push at one weight: no push is lost, nobody waits for ever, and memory stays flat."""

import gc

import keras
import numpy as np
import psutil
import pytest
import tensorflow as tf

import colonnade as cn

pytestmark = pytest.mark.alone

DEVICES, UPDATES, ROUNDS = 8, 20_000, 20
ONES = tf.data.Dataset.from_tensors(np.ones(DEVICES, "float32")).repeat()


def pushing(bound):
    weight = tf.Variable(0.0, dtype=tf.float64)
    trainer = cn.Trainer(
        lambda x: -weight * tf.cast(x, tf.float64),
        keras.optimizers.SGD(1.0),
        devices=DEVICES,
        sync=cn.Asynchronous(max_staleness=bound),
    )
    return weight, trainer


# Twenty rounds; in some the age is bounded, which is where devices wait for each other.
@pytest.mark.parametrize("bound", [None, 7, 3, 0])
def test_every_push_counts(bound):
    weight, trainer = pushing(bound)
    for number in range(1, ROUNDS // 4 + 1):
        history = trainer.fit(ONES, steps=UPDATES // DEVICES, log_every=500, progress=False)
        assert weight.numpy() == number * UPDATES
        staleness = history.records[-1].staleness
        assert sum(staleness.values()) == number * UPDATES
        assert bound is None or max(staleness) <= bound


def memory():
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def test_memory_is_flat_over_five_thousand_steps():
    weight, trainer = pushing(None)
    trainer.fit(ONES, steps=2000, log_every=500, progress=False)  # caches and allocators fill up
    before = memory()
    trainer.fit(ONES, steps=5000, log_every=500, progress=False)
    grown = memory() - before
    print(f"{grown:.1f} MiB")
    # A float per step stays in the history; 5 000 steps of leaked slices would be far above.
    assert grown < 20
    assert weight.numpy() == 7000 * DEVICES
