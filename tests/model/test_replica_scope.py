"""What a replica does where a step applies gradients and updates metrics: two slices against the batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.errors import InvalidArgument
from colonnade.run.model.replica_scope import AppliedInside, ReplicaScope
from colonnade.run.move.reduce import star
from colonnade.run.trace.replica_context import remembered
from colonnade.run.trace.traced import trace
from colonnade.run.trace_cut.sync_cut import call_with_sums
from colonnade.run.variables.replica_copies import ReplicaCopies

DEVICES = ["/device:CPU:0", "/device:CPU:1"]
X = tf.constant([1.0, 2.0, 6.0])


def on_two(step, metrics=(), **options):
    """The results of replicas with 2 and 1 of three examples; the first has the variables themselves."""

    def replica(x, positions):
        scope = ReplicaScope(x.shape[0], 3, positions, **options)
        with remembered(), scope.entered(metrics):
            result = step(x)
        return result, [gradient for _, gradient in scope.gradients]

    replica = tf.autograph.experimental.do_not_convert(replica)
    slices = [(X[:2], tf.constant([0, 1])), (X[2:], tf.constant([2]))]
    traces = [trace(replica, *each) for each in slices]
    copies = ReplicaCopies(DEVICES)
    bound = [copies.bindings(i, traced) for i, traced in enumerate(traces)]
    found = call_with_sums(traces, DEVICES, slices, bound, star(2))
    return [traced.pack(leaves) for traced, leaves in zip(traces, found, strict=True)]


def test_gradients_are_added_by_size_before_they_are_applied_and_once():
    """Keras's optimizers add gradients up themselves, which must not happen again."""
    w = keras.Variable(5.0)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([w])

    def step(x):
        optimizer.apply([tf.reduce_mean(x)], [w])
        return tf.constant(0)

    found = on_two(step)
    for _, (gradient,) in found:
        assert float(gradient) == pytest.approx(3.0)
    assert float(w) == pytest.approx(5.0 - 3.0)
    optimizer.apply([tf.constant(1.0)], [w])  # is Keras's again
    assert float(w) == pytest.approx(1.0)


def test_rows_of_a_table_are_those_of_all_examples_in_their_order():
    table = keras.Variable(np.zeros([7, 1], "float32"))
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([table])

    def step(x):
        rows = tf.cast(x, tf.int64)
        optimizer.apply([tf.IndexedSlices(x[:, None], rows, tf.constant([7, 1]))], [table])
        return tf.constant(0)

    for _, (gradient,) in on_two(step):
        np.testing.assert_array_equal(gradient.indices, [1, 2, 6])
        # A slice's own gradient is that of a mean over it, so it counts by its size.
        np.testing.assert_allclose(gradient.values[:, 0], [1 * 2 / 3, 2 * 2 / 3, 6 / 3])


def rows_of(kind, indices=lambda x: tf.range(3), shape=(3,), **options):
    """What an optimizer is given of a table that each slice of some examples reads in so many rows."""
    table = keras.Variable(np.zeros([7, 1], "float32"), name="table")
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([table])

    def step(x):
        ids = indices(x)
        optimizer.apply([tf.IndexedSlices(tf.ones([tf.size(ids), 1]), ids, tf.constant([7, 1]))], [table])
        return tf.constant(0)

    found = on_two(step, lookups=lambda ids: [(ids, kind, shape)], **options)
    for _, (gradient,) in found:
        np.testing.assert_array_equal(gradient.indices, found[0][1][0].indices)
    return gradient.indices.numpy().tolist(), gradient.values[:, 0].numpy().tolist()


def test_rows_are_those_of_one_device_whoever_looked_them_up():
    """A table that is read at fixed rows has each of them once, and with the mean of the gradients."""
    mean = pytest.approx([1.0, 1.0, 1.0])
    assert rows_of("same", known={0: False}) == ([0, 1, 2], mean)
    assert rows_of("once") == ([0, 1, 2], mean)
    # Other rows, and another number of them, for each slice: one slice after the other.
    rows, values = rows_of("own", lambda x: tf.cast(tf.boolean_mask(x, x > 1), tf.int32), None)
    assert rows == [2, 6]
    assert values == pytest.approx([2 / 3, 1 / 3])


def test_rows_of_which_nobody_can_tell_whose_they_are_are_refused():
    with pytest.raises(InvalidArgument, match=r"table.*is looked up in several ways"):
        rows_of("mixed")


def test_tokens_count_as_in_the_whole_batch_and_numbers_that_are_fixed_stay():
    tokens, steps, mine = keras.metrics.Sum(), keras.metrics.Sum(), keras.metrics.Mean()

    def step(x):
        tokens.update_state(tf.repeat(x, 2))  # two for each example
        steps.update_state(1)
        steps.update_state(tf.constant(1))
        mine.update_state(1.0, sample_weight=keras.ops.shape(x)[0])
        unasked(x)
        return tf.constant(0)

    def unasked(x):
        mine.update_state(1.0, sample_weight=x.shape[0])  # is None to Keras

    on_two(step, [tokens, steps, mine], known={1: False})
    assert float(tokens.result()) == 2 * (1 + 2 + 6)
    assert float(steps.result()) == 2
    assert float(mine.count) == 3 + 1


def test_metrics_are_given_what_the_whole_batch_gives():
    mean, squares = keras.metrics.Mean(), keras.metrics.MeanSquaredError()
    weighted = keras.metrics.Mean()

    def step(x):
        mean.update_state(tf.reduce_mean(x))  # one number: a mean over the slice
        squares.update_state(x, tf.zeros_like(x))  # one for each example
        weighted.update_state(tf.reduce_mean(x), sample_weight=tf.shape(x)[0])  # how many there are
        return tf.constant(0)

    on_two(step, [mean, squares, weighted])
    assert float(mean.result()) == pytest.approx(3.0)
    assert float(squares.result()) == pytest.approx((1 + 4 + 36) / 3)
    assert [float(v) for v in weighted.variables] == pytest.approx([3 * 3.0, 3])
    mean.update_state(1.0)  # is Keras's again


def slope_of_a_sum(target_of):
    """The gradient of a target in which all examples meet: s * x, where s is the sum of all examples."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(x))
            target = target_of(total * x)
        return tape.gradient(target, x)

    return tf.concat([slopes for slopes, _ in on_two(step)], axis=0).numpy()


def test_a_slice_counts_by_its_size_where_its_mean_is_differentiated_through_a_sum():
    """The mean of 3 examples is s * s / 3. Of its slice a replica has more; it tells this."""
    np.testing.assert_allclose(slope_of_a_sum(tf.reduce_mean), [2 * 9 / 3] * 3, rtol=1e-6)


@pytest.mark.parametrize("target", [tf.identity, tf.reduce_sum, lambda each: -tf.reduce_sum(-each)])
def test_slices_count_the_same_where_the_sum_over_examples_is_differentiated(target):
    np.testing.assert_allclose(slope_of_a_sum(target), [18.0] * 3, rtol=1e-6)


def test_a_metric_of_what_has_no_sum_is_refused():
    metric = keras.metrics.Mean()

    def step(x):
        metric.update_state(tf.constant(["a", "b", "c", "d"]))
        return tf.constant(0)

    with pytest.raises(InvalidArgument, match="of which the whole batch has no sum"):
        on_two(step, [metric])


def test_apply_in_a_branch_is_refused():
    w = keras.Variable(5.0)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([w])

    def step(x):
        def apply():
            optimizer.apply([tf.reduce_mean(x)], [w])
            return tf.constant(0)

        return tf.cond(x[0] > 0, apply, lambda: tf.constant(1))

    with pytest.raises(InvalidArgument, match=r"apply='sgd.*': is called inside a loop, a branch"):
        on_two(step)


def test_rows_that_are_not_dense_and_masks_are_those_of_the_batch():
    words = tf.ragged.constant([[1, 2], [3], [4, 5, 6]])
    few = tf.sparse.from_dense([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    seen = []

    class Sees(keras.metrics.Metric):
        def update_state(self, *given):
            seen.append(given)

        def result(self):
            return 0.0

    metric = Sees()

    def step(x):
        begin, count = (0, 2) if x.shape[0] == 2 else (2, 1)
        masked = tf.identity(x)
        masked._keras_mask = x > 1
        part = tf.sparse.slice(few, [begin, 0], [count, 2])
        metric.update_state(words[begin : begin + count], part, masked)
        ragged, sparse, dense = seen[-1]
        return ragged.to_tensor(), tf.sparse.to_dense(sparse), dense._keras_mask

    for (ragged, sparse, mask), _ in on_two(step, [metric]):
        np.testing.assert_array_equal(ragged, words.to_tensor())
        np.testing.assert_array_equal(sparse, tf.sparse.to_dense(few))
        np.testing.assert_array_equal(mask, [False, True, True])


def test_gradients_of_variables_are_added_at_the_tape_where_all_that_is_made_of_them_matters():
    """They may be clipped, and applied in a branch, where nothing can be added."""
    w = keras.Variable(5.0)
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([w])

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_mean(x * w)
        of_w, of_x = tape.gradient(loss, [w, x])
        clipped = tf.minimum(of_w, 2.0)
        tf.cond(clipped > 0, lambda: optimizer.apply([clipped], [w]), lambda: None)
        return of_w, of_x

    with pytest.raises(AppliedInside, match="inside a loop, a branch"):
        on_two(step)
    for (of_w, of_x), (added,) in on_two(step, at_tape=True):
        assert float(of_w) == float(added) == pytest.approx(3.0)
        np.testing.assert_allclose(of_x, np.full(of_x.shape, 5.0 / 3), rtol=1e-6)  # by the batch's size
    assert float(w) == pytest.approx(5.0 - 2.0)
