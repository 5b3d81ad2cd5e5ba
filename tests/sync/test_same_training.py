"""Comparing what machines train, with peers that are made up; real ones are in `machines/test_peers.py`."""

import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.sync.same_training import SHOWN, compared, replicas_of_all
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
