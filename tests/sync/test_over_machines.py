"""What a machine without slices adds, and what is refused; real machines are in `machines/test_peers.py`."""

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import slice_specs
from colonnade.run.step.objective import Objective
from colonnade.run.sync.over_machines import (
    OTHER_BATCH,
    filled,
    idle_share,
    nothing_of,
    other_batch,
    refused,
    sizes_told,
    tensor_leaves,
)


def traced(loss, *batch):
    (part,) = slice_specs(Arguments(batch, {}), [len(batch[0])])
    return Objective(loss, part, keras.optimizers.SGD().scale_loss)


def test_nothing_of_a_gradient_is_of_its_kind():
    table = tf.Variable(tf.ones([5, 3]))
    sparse = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 4]), tf.constant([5, 3]))
    nothing = nothing_of(sparse, table)
    assert tf.convert_to_tensor(nothing).numpy().tolist() == np.zeros([5, 3]).tolist()
    assert nothing.values.shape == (0, 3)
    assert nothing_of(tf.ones([5, 3]), table).numpy().sum() == 0
    assert nothing_of(None, table) is None


def test_an_idle_machine_adds_nothing_of_all_that_others_add():
    table, w = tf.Variable(tf.ones([5, 3])), tf.Variable(2.0)

    def loss(ids):
        values = tf.reduce_sum(tf.gather(table, ids), axis=1) * w
        return cn.Weighted(values, tf.ones_like(values)), {"m": values}

    share = idle_share(traced(loss, np.array([1, 2, 3])))
    assert (float(share.loss), float(share.weight), float(share.metrics["m"])) == (0.0, 0.0, 0.0)
    kinds = sorted(type(g).__name__ for g in share.gradients)
    assert kinds == ["EagerTensor", "IndexedSlices"]
    assert share.health.shape == (2,)


def test_what_only_others_have_is_filled_with_nothing():
    w = tf.Variable([1.0, 2.0])
    trace = traced(lambda x: tf.reduce_sum(x * w, axis=1), np.ones([3, 2], "float32"))
    ((whole,),) = filled([[None]], [trace], [None])
    assert whole.numpy().tolist() == [0.0, 0.0]
    (kept,) = filled([[tf.ones([2])]], [trace], [None])
    assert kept[0].numpy().tolist() == [1.0, 1.0]


def test_a_layer_that_is_split_by_width_is_refused():
    layer = cn.width.Dense(4, devices=["/device:CPU:0", "/device:CPU:1"])
    layer.build((None, 2))
    trace = traced(lambda x: tf.reduce_sum(layer(x), axis=1), np.ones([3, 2], "float32"))
    problems = list(refused([trace]))
    assert problems
    assert all("split by width" in str(problem) for problem in problems)


def test_states_and_outputs_that_cannot_be_summed_are_refused():
    w, name = tf.Variable(1.0), tf.Variable("none", trainable=False)

    def loss(x):
        name.assign("some")
        return x * w, {}, tf.strings.as_string(x)

    words = " ".join(map(str, refused([traced(loss, np.ones(3, "float32"))])))
    assert "string cannot be summed over machines" in words
    assert "not a dense tensor of numbers" in words


def test_an_ordinary_loss_is_not_refused():
    w = tf.Variable(1.0)
    assert list(refused([traced(lambda x: (x * w, {}, x), np.ones(3, "float32"))])) == []


def test_the_sizes_of_different_batches_are_told():
    words = str(other_batch(sizes_told(f"assertion failed: [{OTHER_BATCH}] [30 29]\n\t [[node]]")))
    assert "batches of 30 and 29 rows" in words
    assert "Sort the files" in words


def test_tensors_are_found_in_any_structure():
    assert len(tensor_leaves({"a": (tf.ones(1), None), "b": [3, tf.ones(2)]})) == 2
