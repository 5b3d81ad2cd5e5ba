"""A way of training from nothing: what it must say, and what it gets for it."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.errors import Problem
from colonnade.run.engine.gradients import components, slices
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.protocols import Outcome


class First(GraphEngine):
    """The first device does all the work."""

    def counts(self, rows):
        return (rows,)

    def refused(self, traces):
        if traces[0].written:
            yield Problem("loss", "a function", "changes variables", "Leave it out")

    def step(self, batch):
        (part,) = slices(batch, self.cut(batch))
        traced = self.traces.objective(part, 0, 1)
        leaves = traced.on(self.devices[0], part.components(), self.housed.bindings(0, traced.captures))
        share = traced.pack(leaves)

        def write():
            update = self.traces.update(share.gradients)
            handles = update.bound(self.housed.update_bindings(0, update.captures))
            with tf.control_dependencies([update.call(components(share.gradients), handles)]):
                return tf.cast(self.guard.made.assign_add(1) * 0, tf.int32)

        with tf.control_dependencies([leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]):
            watched = self.guard.watched([share], tf.stack([share.loss]), [tf.zeros([0])])
            skipped = self.guard.guarded(watched, write, None)
        return Outcome(share.loss, share.metrics, tf.stack([share.loss]), skipped)

    def links(self):
        return {}


@dataclass(frozen=True)
class OnTheFirst:
    homes = ("shared",)

    def problems(self, num_devices):
        return ()

    def engine(self, settings):
        return First(settings)


def training(loss, **options):
    return cn.Trainer(loss, keras.optimizers.SGD(0.5, name="sgd"), devices=2, sync=OnTheFirst(), **options)


def test_it_trains_evaluates_and_goes_on_from_a_save(tmp_path):
    x = np.array([[1.0], [2.0], [3.0]], "float32")
    reached = []
    for cut in ([4], [2, 4]):
        for steps in cut:
            w = tf.Variable([0.0], name="w")
            trainer = training(lambda x, w=w: tf.squeeze((x * w - 1) ** 2, 1))
            saved = cn.Checkpoint(tmp_path / str(len(cut)), every=1)
            trainer.fit((x,), batch_size=3, steps=steps, checkpoint=saved, progress=False)
        reached.append(w.numpy())
    assert reached[0] == reached[1] != 0.0
    assert trainer.evaluate((x,), batch_size=2).loss == pytest.approx(np.mean((x * reached[0] - 1) ** 2))
    assert trainer.traffic() == 0.0
    assert len(trainer.homes()) == 3  # w, and two of the optimizer


def test_a_nan_stops_it_and_names_the_device():
    w = tf.Variable(1.0, name="w")
    trainer = training(lambda x: w * x)
    with pytest.raises(cn.NotFinite, match="the loss is not finite on /device:CPU:0 at step 1"):
        trainer.train_on_batch(np.array([np.nan, 1.0], "float32"))
    assert w.numpy() == 1.0


def test_what_it_refuses_is_told_before_anything_is_trained():
    w, count = tf.Variable(1.0), tf.Variable(0.0, trainable=False)

    def loss(x):
        count.assign_add(1.0)
        return w * x

    with pytest.raises(cn.InvalidArgument, match="changes variables"):
        training(loss).train_on_batch(np.ones(2, "float32"))
    assert w.numpy() == 1.0
