"""Who trains nothing reads copies that are there, or has some made; they follow the user's."""

import numpy as np
import tensorflow as tf

from colonnade.run.step.borrowed_homes import BorrowedHomes
from colonnade.run.trace.traced import trace
from colonnade.run.variables.homes import Homes

DEVICES = [f"/device:CPU:{i}" for i in range(3)]


def reading(*variables):
    return trace(lambda x: tf.add_n([x * v for v in variables]), tf.TensorSpec([]))


def read(homes, traced, replica):
    """What the function gives on a device for 1: the sum of the values that it reads there."""
    bound = homes.bindings(replica, traced.captures)
    return float(traced.on(DEVICES[replica], [tf.constant(1.0)], bound)[0])


def test_copies_are_made_for_it_and_follow_what_is_assigned():
    v, w = tf.Variable(1.0), tf.Variable(10.0)
    homes, traced = BorrowedHomes("mirrored", DEVICES), reading(v, w)
    assert [read(homes, traced, i) for i in range(3)] == [11.0] * 3
    assert [one.device[-5:] for one in homes.own(2, [v, w])] == ["CPU:2"] * 2
    v.assign(2.0)
    homes.begin()
    assert [read(homes, traced, i) for i in range(3)] == [12.0] * 3
    homes.begin()  # nothing is new
    assert [read(homes, traced, i) for i in range(3)] == [12.0] * 3


def test_where_they_are_shared_nothing_is_copied():
    v = tf.Variable(1.0)
    homes, traced = BorrowedHomes("shared", DEVICES), reading(v)
    assert read(homes, traced, 2) == 1.0
    assert homes.own(2, [v])[0] is v
    homes.begin()


def test_those_of_a_training_are_read_and_what_it_keeps_for_replicas_is_not():
    w, mean = tf.Variable(1.0), tf.Variable(10.0, trainable=False)
    lender = Homes("mirrored", DEVICES, [w], [])
    training = trace(lambda x: mean.assign_add(x) + w, tf.TensorSpec([]))
    for i in range(3):
        lender.bindings(i, training.captures)
    homes, traced = BorrowedHomes("mirrored", DEVICES, lender), reading(w, mean)
    assert [read(homes, traced, i) for i in range(3)] == [11.0] * 3
    assert homes.own(1, [w])[0] is lender.own(1, [w])[0]
    (own,) = homes.own(1, [mean])
    assert all(own is not other for other in (mean, *lender.states[mean.ref()].copies))
    w.assign(2.0)
    mean.assign(20.0)
    homes.begin()
    assert [read(homes, traced, i) for i in range(3)] == [22.0] * 3
    # What the user assigned meanwhile is what the training goes on from.
    assert [float(copy) for copy in lender.states[mean.ref()].copies] == [20.0] * 3


def test_after_a_step_that_failed_halfway_copies_are_looked_after():
    w = tf.Variable(np.arange(3.0, dtype="float32"))
    lender = Homes("mirrored", DEVICES, [w], [])
    homes = BorrowedHomes("mirrored", DEVICES, lender)
    homes.bindings(1, trace(lambda x: x * w, tf.TensorSpec([])).captures)
    homes.begin()
    (copy,) = lender.own(1, [w])
    copy.assign([7.0, 7.0, 7.0])  # and the user's is as it was
    lender.distrust()
    homes.begin()
    assert np.array_equal(copy, w)
