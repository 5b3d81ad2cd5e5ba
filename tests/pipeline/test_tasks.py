"""Micro-batches on their way through the stages, as the timeline of a step shows them."""

import time
from itertools import accumulate, pairwise

import keras
import pytest
import tensorflow as tf
from piped import X, Y, classify, mlp

import colonnade as cn
from colonnade.hardware.placement import short
from colonnade.run.trace_cut import subgraph


def test_the_timeline_of_the_last_step():
    """As far as it can be told without a clock: every task once, in the order of the schedule."""
    model = mlp()
    pipeline = cn.Pipeline(model, [[0, 1], [2, 3]], micro_batches=3, placement=[0, 0, 1, 1])
    with pytest.raises(cn.InvalidArgument, match="no step has been trained yet"):
        pipeline.timeline()
    trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline)
    trainer.fit((X, Y), batch_size=33, steps=3, progress=False)
    timeline = pipeline.timeline()
    tasks = [(e.replica, e.stage, e.micro_batch, e.kind) for e in timeline.events]
    assert len(set(tasks)) == len(tasks) == 2 * 2 * 3 * 2
    for row, devices in enumerate((("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))):
        for stage, device in enumerate(devices):
            mine = [e for e in timeline.events if e.device == device]
            assert {(e.replica, e.stage) for e in mine} == {(row, stage)}
            # One task at a time on a device, and no more micro-batches alive than the schedule says.
            assert all(a.end <= b.start for a, b in pairwise(mine))
            alive = list(accumulate(1 if e.kind == "forward" else -1 for e in mine))
            assert max(alive) == 2 - stage
    ends = {(e.replica, e.stage, e.micro_batch, e.kind): e.end for e in timeline.events}
    for e in timeline.events:
        before = (e.replica, e.stage - 1, e.micro_batch, "forward")
        if e.kind == "forward" and e.stage:
            assert ends[before] <= e.start


def test_on_cards_a_float_is_the_witness_of_the_end():
    """A number of type int32 lies in the memory of the host, and would be there before the card is done."""
    with tf.Graph().as_default() as graph:
        found = [tf.constant([1]), tf.constant([2.0]) * 3.0]
        subgraph._ended(found, on_card=True)
        subgraph._started((tf.constant(1.0),), on_card=True)
    (cut,) = [op for op in graph.get_operations() if op.type == "StridedSlice"]
    assert cut.inputs[0].dtype == tf.float32
    stamps = [op for op in graph.get_operations() if op.type == "Timestamp"]
    assert [short(op.device) for op in stamps] == ["CPU:0", "CPU:0"]
    assert cut.device == ""


@pytest.mark.long
def test_stages_that_wait_wait_together():
    """Forward takes 2 + 4 - 1 naps where stages overlap, and 2 x 4 where they do not."""

    def nap(x):
        time.sleep(0.05)
        return x

    def stage(weight):
        return lambda x: weight * x + tf.stop_gradient(tf.numpy_function(nap, [x], tf.float32, stateful=True))

    pipeline = cn.Pipeline([stage(tf.Variable(1.0)), stage(tf.Variable(1.0))], 2, micro_batches=4)
    trainer = cn.Trainer(
        lambda x: tf.ensure_shape(pipeline(x), x.shape), keras.optimizers.SGD(0.0), devices=pipeline
    )
    for _ in range(2):  # the first step is the slower one
        trainer.train_on_batch(tf.ones([4]))
    assert pipeline.timeline().slots < 7


def test_gpipe_keeps_all_micro_batches_alive():
    pipeline = cn.Pipeline(mlp(2), 2, micro_batches=5, schedule="gpipe")
    cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(X, Y)
    for device in ("CPU:0", "CPU:1"):
        mine = [e for e in pipeline.timeline().events if e.device == device]
        assert max(accumulate(1 if e.kind == "forward" else -1 for e in mine)) == 5
