"""What a call of many steps leaves behind where it fails: here virtual devices stand for cards."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.protocols import Settings
from colonnade.run.move.slices_ahead import SlicesAhead


class Refusing(SlicesAhead):
    """Places that take no batch with a number from a limit on."""

    limit = tf.Variable(0.0, trainable=False)

    def send(self, batch):
        number = tf.reduce_max(batch.components()[0])
        with tf.control_dependencies([tf.debugging.assert_less(number, self.limit, "no room")]):
            return super().send(batch)


@pytest.fixture
def refusing(monkeypatch):
    """Slices go ahead; returns a training of which each step adds the number of its batch to a weight."""
    places = {}

    def ahead(self, batch):
        return places.setdefault(batch.key(), Refusing(batch, self.cut(batch), self.devices))

    monkeypatch.setattr(GraphEngine, "ahead", ahead)
    w, devices = tf.Variable(0.0), ("/device:CPU:0", "/device:CPU:1")
    settings = Settings(lambda x: -w * x, keras.optimizers.SGD(1.0), devices, "shared")
    loop = cn.Synchronous().engine(settings).loop(lambda outcome, batch: outcome.loss)
    numbers = tf.data.Dataset.range(1, 20).map(lambda i: tf.fill([4], tf.cast(i, tf.float32)))

    def begun(limit):
        Refusing.limit.assign(limit)
        return loop.stream(FitData(numbers.map(lambda x: (x,)), ["x"], {}))

    return w, begun


def test_no_step_is_made_where_the_first_batch_of_a_call_cannot_be_sent(refusing):
    w, begun = refusing
    assert begun(99.0).take(3).steps == 3
    assert float(w) == 1.0 + 2.0 + 3.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="no room"):
        begun(0.0).take(3)
    assert float(w) == 6.0
    assert begun(99.0).take(2).steps == 2
    assert float(w) == 6.0 + 1.0 + 2.0


def test_no_step_is_made_on_a_batch_that_was_not_sent(refusing):
    w, begun = refusing
    stream = begun(4.0)
    chunk = stream.take(9)
    assert (chunk.steps, chunk.losses, stream.resting) == (2, [0.0, -2.0], False)
    assert float(w) in (1.0 + 2.0, 1.0 + 2.0 + 3.0)  # the third step goes beside the copy that fails
    with pytest.raises(tf.errors.InvalidArgumentError, match="no room"):
        stream.take(1)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [4, 4, 2], [4]])
def test_batches_of_a_known_size_end_where_the_data_do(sizes):
    """Nothing of such batches is looked at; where one may be smaller, it is."""
    rows = np.arange(sum(sizes), dtype="float32")
    w = tf.Variable(0.0)
    trainer = cn.Trainer(lambda x: -w * x, keras.optimizers.SGD(1.0), devices=2)
    data = tf.data.Dataset.from_tensor_slices(rows).batch(4, drop_remainder=sizes[-1] == 4)
    trainer.fit(data, epochs=2, log_every=100, progress=False)
    means = [part.mean() for part in np.split(rows, np.cumsum(sizes)[:-1])]
    assert trainer.step == 2 * len(sizes)
    np.testing.assert_allclose(float(w), 2 * sum(means), rtol=1e-6)
