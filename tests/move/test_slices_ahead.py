"""A step takes slices that were put on their devices before: here virtual devices stand for cards."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.move.slices_ahead import SlicesAhead

DEVICES = [f"/device:CPU:{i}" for i in (1, 2, 3)]


def test_what_was_sent_is_what_is_taken():
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [], [4.0], [5.0]])
    batch = Arguments((tf.reshape(tf.range(10.0), [5, 2]), tf.range(5), tf.constant(7.0), ragged), {}, "abcd")
    ahead = SlicesAhead(batch, [2, 2, 1], DEVICES)

    @tf.function(autograph=False)
    def there_and_back(*components):
        given = batch.with_components(components)
        with tf.control_dependencies([ahead.send(given)]):
            cut = ahead.take(given)
        assert cut.size("the batch") == 5
        return [part.components() for part in cut.parts([2, 2, 1])]

    expected = [part.components() for part in batch.parts([2, 2, 1])]
    for one, other in zip(there_and_back(*batch.components()), expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(a, b)
    # Whole numbers of 32 bits stay on the host.
    for device, (a, b, *_) in zip(DEVICES, ahead.places, strict=True):
        assert a.device.endswith(device)
        assert b.device.endswith("CPU:0")


X = np.random.default_rng(0).normal(size=(44, 3))


def fitted(sizes, good=None, **options):
    w = tf.Variable(np.ones([3, 1]))
    trainer = cn.Trainer(lambda x: tf.squeeze(x @ w, 1) ** 2, keras.optimizers.SGD(0.01), devices=3)

    def batches():
        start = 0
        for number, size in enumerate(sizes):
            if number == good:
                raise ValueError("the disk is gone")
            yield (X[start : start + size],)
            start += size

    spec = (tf.TensorSpec([None, 3], tf.float64),)
    data = tf.data.Dataset.from_generator(batches, output_signature=spec)
    if good is None:
        losses = trainer.fit(data, progress=False, prove=False, **options).losses
    else:
        losses = []
        with pytest.raises(tf.errors.OpError, match="the disk is gone"):
            trainer.fit(data, progress=False, prove=False, **options)
    return trainer.step, losses, w.numpy().tolist()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("good", [None, 1, 2])
@pytest.mark.parametrize("log_every", [1, 2, 100])
def test_every_batch_is_trained_once_whatever_comes_next(monkeypatch, good, log_every):
    """Other sizes, fewer rows than devices, the end, data that fail: as without, bit for bit."""
    sizes = [9, 9, 9, 9, 6, 2]
    behind = fitted(sizes, good, log_every=log_every)
    taken = []

    def ahead(self, batch):
        taken.append(batch)
        return SlicesAhead(batch, self.cut(batch), self.devices)

    monkeypatch.setattr(GraphEngine, "ahead", ahead)
    assert fitted(sizes, good, log_every=log_every) == behind
    assert behind[0] == (6 if good is None else good)
    assert taken
