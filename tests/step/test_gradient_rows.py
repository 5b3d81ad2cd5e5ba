"""Where the rows of a sparse gradient come from, read from the trace."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.step.gradient_rows import DENSE, MIXED, ONCE, OWN, SAME
from colonnade.run.step.objective import Objective

IDS = np.array([[1, 2, 2], [0, 3, 1]])


def nested(fn):
    return tf.function(fn, autograph=False)


def form(look_up, ids=IDS):
    """The kinds of rows in the gradient of a table."""
    table = tf.Variable(np.ones((5, 2)))
    batch = Arguments((tf.constant(ids),), {}, ["ids"]).prefixed(tf.constant(0.5, tf.float64))
    objective = Objective(lambda ids: tf.reduce_sum(look_up(table, ids), axis=[1, 2]), batch, lambda x: x)
    (one,) = objective.forms
    return one if isinstance(one, str) else tuple(piece.kind for piece in one)


@pytest.mark.parametrize(
    ("look_up", "kinds"),
    [
        (lambda table, ids: tf.gather(table, ids), (OWN,)),
        (lambda table, ids: tf.gather(table, tf.reshape(ids + 1, [-1, 3])), (OWN,)),
        (lambda table, ids: tf.gather(table, [[4, 0, 0]]) + tf.zeros([2, 3, 2], tf.float64), (SAME,)),
        (lambda table, ids: tf.gather(table, tf.range(3)) + tf.zeros([2, 3, 2], tf.float64), (ONCE,)),
        (lambda table, ids: tf.gather(table, tf.zeros_like(ids)), (SAME,)),
        (lambda table, ids: tf.gather(tf.gather(table, tf.unique(tf.reshape(ids, [-1]))[0]), ids), (ONCE,)),
        (lambda table, ids: tf.gather(table, ids) + tf.gather(table, [[4, 0, 0]]), (OWN, SAME)),
        (lambda table, ids: nested(lambda i: tf.gather(table, i))(ids), (OWN,)),
        (
            lambda table, ids: nested(lambda i: tf.gather(table, i) + tf.gather(table, [[4, 0, 0]]))(ids),
            (MIXED,),
        ),
        (lambda table, ids: tf.one_hot(ids, 5, dtype=tf.float64) @ table, DENSE),
        (
            lambda table, ids: tf.gather(table, tf.random.uniform([2, 3], maxval=5, dtype=tf.int32)),
            (OWN,),
        ),
    ],
)
def test_kinds_of_rows(look_up, kinds):
    assert form(look_up) == kinds
