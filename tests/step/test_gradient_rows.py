"""Where the rows of a sparse gradient come from, read from the trace."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.step.gradient_rows import DENSE, FOLDED, MIXED, ONCE, OWN, SAME
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


def at(table, rows):
    """Rows of which the number is not known."""
    return tf.reduce_sum(tf.gather(table, rows)) + tf.zeros([2, 3, 2], tf.float64)


def drawn():
    return tf.random.uniform([8], maxval=4, dtype=tf.int32)


def looked_up(rows):
    return lambda table, ids: at(table, rows(tf.reshape(ids, [-1])))


DISTINCT = [
    lambda ids: tf.unique_with_counts(ids).y,
    lambda ids: tf.raw_ops.UniqueWithCountsV2(x=ids, axis=[0]).y,
    lambda ids: tf.sort(tf.unique(ids).y),
    lambda ids: tf.sort(tf.unique(tf.cast(ids, tf.int32)).y, direction="DESCENDING"),
    lambda ids: tf.random.shuffle(tf.unique(ids).y)[:2],
    lambda ids: tf.boolean_mask(tf.unique(ids).y, tf.unique(ids).y > 1),
    lambda ids: tf.gather(tf.unique(ids).y, tf.argsort(tf.unique(ids).y)),
    lambda ids: tf.unique(ids).y + 1,
    lambda ids: nested(lambda ids: tf.sort(tf.unique(ids).y))(ids),
    lambda ids: tf.where(tf.math.bincount(tf.cast(ids, tf.int32), minlength=5) > 0)[:, 0],
    lambda ids: 4 - tf.range(3),
    lambda ids: tf.math.top_k(tf.cast(ids, tf.float64), 2).indices,
]
FIXED = [
    lambda ids: tf.random.stateless_uniform([8], [1, 2], maxval=5, dtype=tf.int32),
    lambda ids: tf.cast(tf.range(0.0, 3.0, 0.5), tf.int32),
    lambda ids: tf.map_fn(lambda i: i // 2, tf.range(5)),
    lambda ids: tf.cond(tf.size(ids) > 3, lambda: [1, 1], lambda: [2, 2]),
    lambda ids: tf.repeat(tf.range(2), 2),
]
OF_SLICE = [
    lambda ids: tf.gather(*tf.unique(ids)),
    lambda ids: tf.boolean_mask(ids, ids > 1),
    lambda ids: tf.map_fn(lambda _: tf.random.uniform([], 0, 5, tf.int64), ids),
    lambda ids: tf.map_fn(
        lambda _: tf.random.uniform([], 0, 5, tf.int64), tf.zeros([5]), fn_output_signature=tf.int64
    ),
    lambda ids: 1 + tf.cond(tf.size(ids) > 1, drawn, lambda: tf.zeros([8], tf.int32)),
    lambda ids: tf.while_loop(lambda i: i < tf.cast(ids[0], tf.int32), lambda i: i + 1, [0])[0][None],
    lambda ids: tf.while_loop(lambda i, last: i < 3, lambda i, last: (i + 1, ids[i]), [0, ids[0]])[1][None],
    lambda ids: tf.cond(ids[0] > 1, lambda: [1, 1], lambda: [2, 2]),
    lambda ids: tf.cast(tf.random.truncated_normal([3]), tf.int32),
    lambda ids: tf.math.top_k(tf.cast(tf.reshape(ids, [2, 3]), tf.float64), 2).indices,
]


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
        *[
            (lambda table, ids, rows=rows: at(table, rows(tf.reshape(ids, [-1]))), (ONCE,))
            for rows in DISTINCT
        ],
        *[(looked_up(rows), (SAME,)) for rows in FIXED],
        *[
            (lambda table, ids, rows=rows: at(table, rows(tf.reshape(ids, [-1]))), (OWN,))
            for rows in OF_SLICE
        ],
        (lambda table, ids: at(table, tf.unique(tf.reshape(ids, [-1])).y // 2), (FOLDED,)),
        (lambda table, ids: at(table, tf.minimum(tf.unique(tf.reshape(ids, [-1])).y, 2)), (FOLDED,)),
    ],
)
def test_kinds_of_rows(look_up, kinds):
    assert form(look_up) == kinds
