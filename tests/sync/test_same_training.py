"""Comparing what machines train, with peers that are made up; real ones are in `machines/test_peers.py`."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.sync.same_training import SHOWN, _ops, compared, replicas_of_all, same_kind
from colonnade.run.variables.saved_state import SavedState


class Others:
    """Peers of which the others have said what a test wants."""

    names = ("a", "b", "c")

    def __init__(self, change):
        self._change = change

    def exchange(self, topic, value):
        return [value, self._change(dict(value)), value]


def test_equal_values_are_accepted():
    compared(Others(lambda sums: sums), {"w": tf.constant([1.0, 2.0])}, "a step")


def test_a_bit_that_differs_is_told_with_its_machine():
    seen = []

    def flipped(sums):
        seen.append(dict(sums))
        return {name: total ^ 1 for name, total in sums.items()}

    with pytest.raises(cn.InvalidArgument, match="variable='w': has other values on b than"):
        compared(Others(flipped), {"w": tf.constant([1.0, 2.0])}, "a step")
    with pytest.raises(cn.InvalidArgument):
        compared(Others(flipped), {"w": tf.constant([1.0, 2.0000002])}, "a step")
    assert seen[0] != seen[1]


class Batches(Others):
    several, sharded = True, False

    def exchange(self, topic, value):
        return [value, self._change(list(value)), value]


def test_a_batch_of_another_kind_is_told_before_the_step():
    batch = Arguments((tf.zeros([6, 2]),), {}, ["x"])
    same_kind(Batches(lambda own: own), batch, "fit()")
    with pytest.raises(cn.InvalidArgument, match="batches of 6 and 5 and 6 rows"):
        same_kind(Batches(lambda own: [5, own[1] + 1]), batch, "fit()")
    with pytest.raises(cn.InvalidArgument, match="data='batches of 6 and 6 and 6 rows'"):
        same_kind(Batches(lambda own: [own[0], own[1] + 1]), batch, "fit()")


def test_of_many_that_differ_some_are_named():
    values = {f"w{i}": tf.constant(float(i)) for i in range(9)}
    with pytest.raises(cn.InvalidArgument) as told:
        compared(Others(lambda sums: dict.fromkeys(sums, 0)), values, "a step")
    assert str(told.value).count("has other values") == SHOWN
    assert "6 more" in str(told.value)


def test_what_replicas_have_is_numbered_over_all_machines():
    seeds = tuple(tf.Variable([i, 0], dtype=tf.int64, trainable=False) for i in range(2))
    every = replicas_of_all(Others(lambda own: own), SavedState({}, {"seed": seeds}, frozenset(["seed"])))
    assert {name: value.numpy().tolist() for name, value in every.items()} == {
        f"replicas/{i}/seed": [i % 2, 0] for i in range(6)
    }


def ops_of(function, *shapes):
    """What is compared of a graph."""
    specs = [tf.TensorSpec(shape) for shape in shapes or ([4, 3],)]
    return _ops([SimpleNamespace(concrete=tf.function(function).get_concrete_function(*specs))])


def test_graphs_that_differ_in_a_number_an_axis_or_a_branch_are_told_apart():
    graphs = [
        lambda x: tf.reduce_sum(x * 0.1),
        lambda x: tf.reduce_sum(x * 0.2),
        lambda x: tf.reduce_sum(x * 0.1, axis=0),
        lambda x: tf.reduce_sum(x * 0.1, axis=1),
        lambda x: tf.nn.dropout(x, 0.1),
        lambda x: tf.nn.dropout(x, 0.2),
        lambda x: tf.cond(x[0, 0] > 0, lambda: x * 2.0, lambda: x),
        lambda x: tf.cond(x[0, 0] > 0, lambda: x * 3.0, lambda: x),
        lambda x: tf.einsum("ij,kj->ik", x, x),
        lambda x: tf.einsum("ij,kj->ki", x, x),
    ]
    found = [tuple(ops_of(graph)) for graph in graphs]
    assert len(set(found)) == len(graphs)
    assert found == [tuple(ops_of(graph)) for graph in graphs]


def test_names_seeds_and_what_is_printed_do_not_make_another_graph():
    def one(name, label, seed):
        def function(x):
            with tf.name_scope(name):
                tf.print(label, tf.reduce_sum(x))
                checked = tf.debugging.check_numerics(x, f"{name} is not finite")
                tf.debugging.assert_greater(checked, 0.0, message=name)
                y = tf.py_function(lambda v: v, [checked], tf.float32)
                y = tf.cond(x[0, 0] > 0, lambda: y * 2.0, lambda: y)
                return y + tf.random.normal([3], seed=seed)

        return function

    assert ops_of(one("here", "[CPU:0]", 1)) == ops_of(one("there", "[CPU:1]", 2))
