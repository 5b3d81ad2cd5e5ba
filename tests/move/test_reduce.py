import itertools

import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.move.reduce import reduce, spread, star, traffic

DEVICES = [f"/device:CPU:{i}" for i in range(4)]
#           star                          tree: neighbours first           chain
ORDERS = [star(4), (((1, 0), (3, 2)), ((2, 0),)), (((3, 2),), ((2, 1),), ((1, 0),))]


def slices(values, rows):
    return tf.IndexedSlices(tf.constant(values), tf.constant(rows), tf.constant([5, 2]))


def gradients(device):
    """Dense in two dtypes and many sizes, sparse, missing everywhere, missing on one device."""
    rng = np.random.default_rng(device)
    return [
        tf.constant(rng.normal(size=(3, 4)).astype("float32")),
        tf.constant(rng.integers(0, 9, 5)),
        slices(rng.normal(size=(2, 2)).astype("float32"), [device, 4]),
        None,
        None if device == 1 else tf.constant([1.0, float(device)]),
        tf.constant(rng.normal(size=7).astype("float32")),
        tf.constant(float(device)),
    ]


def dense(value):
    return np.asarray(tf.convert_to_tensor(value))


@pytest.mark.parametrize(("order", "bucket"), list(itertools.product(ORDERS, [0, 40, 10**6])))
def test_sums_along_any_order_in_any_buckets(order, bucket):
    rows = [gradients(d) for d in range(4)]
    result = tf.function(lambda: reduce(rows, DEVICES, order, bucket_bytes=bucket))()
    assert result[3] is None
    assert isinstance(result[2], tf.IndexedSlices)
    for i in (0, 1, 2, 4, 5, 6):
        expected = np.sum([dense(row[i]) for row in rows if row[i] is not None], axis=0)
        np.testing.assert_allclose(dense(result[i]), expected, rtol=1e-6)
        assert dense(result[i]).dtype == expected.dtype


def test_adds_run_on_the_targets_of_the_order():
    rows = [[tf.ones(3) * d] for d in range(4)]

    def tree(*flat):
        return reduce([[x] for x in flat], DEVICES, ORDERS[1])

    report = cn.placement(tree, *[row[0] for row in rows])
    adds = [row.actual for row in report.ops if row.op.startswith("Add")]
    # TensorFlow's optimiser joins the two adds on device 0.
    assert sorted(set(adds)) == ["/device:CPU:0", "/device:CPU:2"]


def test_traffic_is_known_before_running():
    specs = [[tf.TensorSpec([3, 4]), tf.TensorSpec([5], tf.int64), None] for _ in range(4)]
    report = traffic(specs, ORDERS[1])
    assert report.links == {(1, 0): 88, (3, 2): 88, (2, 0): 88}
    assert report.total == 264
    assert report.exact


def test_traffic_of_sparse_gradients_grows_with_the_sum():
    rows = [[slices(np.ones((2, 2), "float32"), [d, 4])] for d in range(4)]
    each = 2 * 2 * 4 + 2 * 4
    assert traffic(rows, ORDERS[1]).links == {(1, 0): each, (3, 2): each, (2, 0): 2 * each}


def test_traffic_of_a_sum_with_missing_sparse_and_dense_gradients():
    sparse = slices(np.ones((2, 2), "float32"), [0, 4])
    each, dense = 2 * 2 * 4 + 2 * 4, tf.TensorSpec([5, 2])
    chain = (((3, 2),), ((2, 1),), ((1, 0),))
    assert traffic([[None], [sparse], [None], [sparse]], chain).links == {
        (3, 2): each,
        (2, 1): each,
        (1, 0): 2 * each,
    }
    assert traffic([[None], [dense], [None], [sparse]], chain).links[1, 0] == 5 * 2 * 4


def test_traffic_says_when_only_the_run_can_tell():
    unknown = tf.IndexedSlices(tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int32))
    assert not traffic([[unknown], [unknown]], star(2)).exact


@pytest.mark.parametrize("order", ORDERS)
def test_spread_gives_every_device_the_same(order):
    copies = spread([tf.constant([1.0, 2.0]), None], DEVICES, order)
    assert [copy[0].numpy().tolist() for copy in copies] == [[1.0, 2.0]] * 4
    assert all(copy[1] is None for copy in copies)


def test_one_device_needs_no_order():
    assert star(1) == ()
    (value,) = reduce([[tf.constant(3.0)]], DEVICES[:1], ())
    assert float(value) == 3.0
