"""Comparing what machines train, with peers that are made up; real ones are in `machines/test_peers.py`."""

from types import SimpleNamespace

import numpy as np
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


def facts_of(function, *arguments):
    """What is compared of a graph."""
    specs = [tf.TensorSpec([4, 3], name=name) for name in arguments]
    return _ops([SimpleNamespace(concrete=tf.function(function).get_concrete_function(*specs))], {})


def test_a_table_that_is_captured_counts_by_its_value():
    def with_table(table):
        return facts_of(lambda x: tf.linalg.matmul(x, table), "x")

    one = np.linspace(0.0, 1.0, 600, dtype="float32").reshape(
        3, 200
    )  # larger than what becomes part of a graph
    other = one.copy()
    other[2, 7] += 0.5
    assert with_table(tf.constant(one)) == with_table(tf.constant(one.copy()))
    assert with_table(tf.constant(one)) != with_table(tf.constant(other))


def test_a_vocabulary_counts_by_what_is_in_it():
    """Of a set of words each process has an order of its own, and with it other numbers for them."""

    def with_words(*words, numbers=tf.int64):
        numbered = tf.range(len(words), dtype=numbers)
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(words, numbered), -1)
        return facts_of(lambda x: tf.cast(table.lookup(tf.as_string(x)), tf.float32), "x")

    assert with_words("a", "b", "c") == with_words("a", "b", "c")
    assert with_words("a", "b", "c") != with_words("a", "c", "b")
    assert with_words("a", "b", numbers=tf.int32) != with_words("b", "a", numbers=tf.int32)


def test_two_tables_of_other_kinds_are_told_apart():
    def with_words(first, second):
        by_word = tf.lookup.KeyValueTensorInitializer(first, tf.range(2, dtype=tf.int64))
        by_number = tf.lookup.KeyValueTensorInitializer(tf.range(2, dtype=tf.int64), second)
        word, number = tf.lookup.StaticHashTable(by_word, -1), tf.lookup.StaticHashTable(by_number, "?")
        return facts_of(lambda x: tf.strings.length(number.lookup(word.lookup(tf.as_string(x)))), "x")

    one = with_words(["a", "b"], ["c", "dd"])
    assert one == with_words(["a", "b"], ["c", "dd"])
    assert one != with_words(["b", "a"], ["c", "dd"])
    assert one != with_words(["a", "b"], ["dd", "c"])


def test_variables_that_are_only_read_are_told_apart():
    a, b = tf.Variable(tf.ones([3]), name="a"), tf.Variable(tf.ones([3]), name="b")
    assert facts_of(lambda x: x * (a - b), "x") != facts_of(lambda x: x * (b - a), "x")


def test_words_are_compared_by_what_they_say():
    def said():
        return {"w": tf.constant(["".join(["a", "b"]), "c"])}

    seen = []
    for _ in range(2):
        compared(Others(lambda sums: seen.append(sums) or sums), said(), "a step")
    assert seen[0] == seen[1]
    with pytest.raises(cn.InvalidArgument):
        compared(Others(lambda _: seen[0]), {"w": tf.constant(["ab", "d"])}, "a step")
