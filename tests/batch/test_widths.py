"""Which dims are open, from which batch on."""

import tensorflow as tf

from colonnade.run.batch.split import Arguments, broadcast
from colonnade.run.batch.widths import Widths


def shapes(widths, *batch):
    return [leaf.shape for leaf in widths.opened(Arguments(batch, {})).leaves if leaf.role != "fixed"]


def test_a_dim_is_open_from_its_second_size_on_and_stays_so():
    widths = Widths()
    assert shapes(widths, tf.ones([4, 7, 2]), tf.ones([4])) == [(4, 7, 2), (4,)]
    assert shapes(widths, tf.ones([4, 9, 2]), tf.ones([4])) == [(4, None, 2), (4,)]
    assert shapes(widths, tf.ones([4, 7, 2]), tf.ones([4])) == [(4, None, 2), (4,)]
    assert shapes(widths, tf.ones([4, 7, 3]), tf.ones([4])) == [(4, None, None), (4,)]


def test_the_first_dim_is_known_and_widths_of_what_passes_whole_are_opened_too():
    """The whole batch goes to every device where a loss needs it, and is as wide as its slices."""
    widths = Widths()
    assert shapes(widths, tf.ones([4, 2]), broadcast(tf.ones([2, 5]))) == [(4, 2), (2, 5)]
    assert shapes(widths, tf.ones([3, 2]), broadcast(tf.ones([2, 6]))) == [(3, 2), (2, None)]
    assert shapes(widths, tf.ones([3, 2]), broadcast(tf.ones([7, 6]))) == [(3, 2), (7, 6)]


def test_one_spec_serves_all_widths_of_what_passes_whole():
    batch = Arguments((tf.ones([4, 2]), broadcast(tf.ones([4, 5]))), {}).opened([(), (1,)])
    assert [tuple(component.shape) for component in batch.resized(2).components()] == [(2, 2), (4, None)]


def test_dims_that_a_dataset_does_not_know_are_open_from_the_start():
    widths = Widths()
    spec = tf.TensorSpec([None, None, 2]), tf.TensorSpec([None])
    widths.expect(Arguments(spec, {}))
    assert shapes(widths, tf.ones([4, 7, 2]), tf.ones([4])) == [(4, None, 2), (4,)]


def test_batches_of_another_kind_have_widths_of_their_own():
    widths = Widths()
    assert shapes(widths, tf.ones([4, 7])) == [(4, 7)]
    assert shapes(widths, tf.ones([4, 9], tf.float64)) == [(4, 9)]
    assert shapes(widths, tf.ones([4, 9])) == [(4, None)]


def test_ragged_tensors_are_left_alone():
    widths, one = Widths(), tf.ragged.constant([[1, 2], [3]])
    assert shapes(widths, one) == [(2, None)]
    assert shapes(widths, tf.ragged.constant([[1, 2, 3], [3]])) == [(2, None)]


def test_specs_are_those_of_a_trace():
    batch = Arguments((tf.ones([4, 7]), tf.ragged.constant([[1.0], [2.0], [], []])), {}).opened([(1,), ()])
    assert [spec.shape.as_list() for spec in batch.specs()] == [[4, None], [2], [5]]
    assert batch.key() == batch.with_components([tf.ones([4, 9]), *batch.components()[1:]]).key()
