import numpy as np
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.model.group_scope import GroupScope
from colonnade.run.move.reduce import star
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import call_with_sums


def test_rows_of_all_batches_are_put_one_after_the_other():
    """Three replicas, whose tables are looked up in 2, 0 and 3 rows."""
    table = tf.Variable(np.zeros((4, 2)))

    def step(ids, weight, place):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids) * weight)
        gradient = tape.gradient(loss, table)
        summed = GroupScope(place, 3)._sum(gradient, "table")
        return summed.values, summed.indices

    names = ("ids", "weight", "place")
    kinds = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int32)
    traced = Traced(step, Arguments(kinds, {}, names))
    parts = [([1, 1], 3.0, 0), ([], 6.0, 1), ([0, 3, 1], 9.0, 2)]
    given = [[tf.constant(ids, tf.int32), tf.constant(w, tf.float64), tf.constant(i)] for ids, w, i in parts]
    devices = [f"/device:CPU:{i}" for i in range(3)]

    @tf.function
    def run():
        return call_with_sums([traced] * 3, devices, given, [{}] * 3, star(3))

    for values, indices in run():
        assert indices.numpy().tolist() == [1, 1, 0, 3, 1]
        np.testing.assert_allclose(values, np.repeat([[1.0], [3.0]], [2, 3], axis=0) * [1, 1])
