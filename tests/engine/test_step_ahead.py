"""Steps one by one on slices that were sent by the step before: here virtual devices stand for cards."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.batch.split import Arguments, broadcast
from colonnade.run.data.coming_batches import KerasBatches
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.graph_loop import once_of
from colonnade.run.engine.step_ahead import StepAhead, worth_sending
from colonnade.run.move.slices_ahead import SlicesAhead

RNG = np.random.default_rng(0)
X, TABLE = RNG.normal(size=(60, 3)), RNG.normal(size=(4,))
IDS = RNG.integers(0, 4, size=60).astype("int32")


@pytest.fixture
def as_on_cards(monkeypatch):
    """Slices go ahead; returns what was sent before a step, and not by the one before it."""
    filled, places, fill = [], {}, StepAhead.fill

    def ahead(self, batch):
        return places.setdefault(batch.key(), SlicesAhead(batch, self.cut(batch), self.devices))

    def noted(self, batch):
        filled.append(batch.size("the batch"))
        fill(self, batch)

    def begin():
        monkeypatch.setattr(GraphEngine, "ahead", ahead)
        monkeypatch.setattr(StepAhead, "fill", noted)
        return filled, places

    return begin


def batches(sizes):
    ends = np.cumsum(sizes)
    cut = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    return [(tf.constant(X[where]), tf.constant(IDS[where])) for where in cut]


def trained(given, left=None, losses=None):
    losses = [] if losses is None else losses
    w = tf.Variable(np.ones([3, 1]))

    def loss(x, ids, table):
        return tf.squeeze(x @ w, 1) ** 2 * tf.gather(table, ids)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=3)
    coming = KerasBatches().along(iter(given))
    coming.left = left

    def as_batch(data):
        if len(data) != 2:
            raise ValueError("refused")
        return Arguments((*data, broadcast(tf.constant(TABLE))), {}, ("x", "ids", "table"))

    trainer._engine.enter()
    for data in coming:
        losses.append(float(once_of(trainer._loop, as_batch(data), coming, as_batch)[0]))
    trainer._engine.leave()
    coming.close()
    return losses, w.numpy().tolist()


def test_every_batch_is_trained_once_whatever_comes_next(as_on_cards):
    """Other sizes, fewer rows than devices, the end; bit for bit as without."""
    given = batches([9, 9, 9, 6, 6, 2, 9])
    behind = trained(given)
    filled, places = as_on_cards()
    assert trained(given) == behind
    # The first of each size, or of those that come after another size; the others were there.
    assert filled == [9, 6, 2, 9]
    held = [place for each in places.values() for own in each.places for place in own]
    assert [int(tf.size(place)) for place in held] == [0] * len(held)


def test_what_is_not_to_be_fetched_yet_is_not_sent(as_on_cards):
    given = batches([9, 9, 9, 9])
    behind = trained(given)
    filled, _ = as_on_cards()
    assert trained(given, left=2) == behind
    assert filled == [9, 9, 9]


def test_a_batch_of_another_structure_is_looked_at_in_its_turn(as_on_cards):
    """Nobody tries to make of it what a step takes, which may be refused."""
    good, losses = batches([9, 9]), []
    as_on_cards()
    with pytest.raises(ValueError, match="refused"):
        trained([*good, (*good[0], tf.ones([9]))], losses=losses)
    assert len(losses) == 2


def test_only_what_is_cut_and_used_on_a_card_is_sent():
    batch = Arguments((tf.ones([4, 2]), tf.range(4), tf.ones([4]), broadcast(tf.ones([4]))), {}, "abcd")

    def used(a, b, c, d):
        return tf.reduce_sum(a[:, 0] * d) + tf.cast(tf.reduce_sum(b), tf.float32)

    specs = [tf.TensorSpec(c.shape, c.dtype) for c in batch.components()]
    traced = tf.function(used).get_concrete_function(*specs)
    # Whole numbers of 32 bits stay on the host; nobody takes c; d is the same for all.
    assert worth_sending(batch, traced.inputs) == [True, False, False, False]
