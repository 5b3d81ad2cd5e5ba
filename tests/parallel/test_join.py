"""What replicas return as one value: concatenated, averaged, added or stacked."""

import numpy as np
import pytest
import tensorflow as tf
from families import long
from hypothesis import given, settings
from hypothesis import strategies as st

import colonnade as cn
from colonnade.hardware import devices as hardware

RNG = np.random.default_rng(0)


def close(a, b, tolerance=1e-5):
    """Sums of float32 in another order; 1e-5 of the largest value covers sums of 200 terms."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))


def test_a_mean_does_not_overflow_in_half_precision():
    mean = cn.parallel(lambda x: x[0], devices=2, join="mean")
    close(mean(100 * tf.ones(4096, tf.float16)), 100.0, tolerance=1e-3)


@pytest.mark.parametrize(("join", "expected"), [("mean", 3.0), ("sum", 3.5 + 2.0), ("stack", [3.5, 2.0])])
def test_scalars_are_joined_as_asked(join, expected):
    f = cn.parallel(tf.reduce_mean, devices=2, join=join)
    close(f(tf.constant([1.0, 6.0, 2.0])), expected)


def test_a_scalar_without_a_join_is_an_error_with_the_choices():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.make_parallel(lambda x: {"loss": tf.reduce_mean(x)}, 2, x=tf.ones(4))
    assert "output['loss']" in str(caught.value)
    assert all(f'"{join}"' in str(caught.value) for join in ("mean", "sum", "stack"))


def test_a_mean_is_weighted_with_its_gradient():
    w = tf.Variable(2.0)
    x = tf.constant(RNG.normal(size=(99, 3)).astype("float32"))
    f = cn.parallel(lambda x: (tf.reduce_mean((x * w) ** 2), x * w), devices=4, join="mean")
    with tf.GradientTape() as tape:
        loss, rows = f(x)
    assert rows.shape == [99, 3]  # what has a batch dim is concatenated, whatever the join
    close(tape.gradient(loss, w), np.mean(2 * 2.0 * x**2))


def test_a_dim_of_the_slice_size_by_chance_is_no_batch_dim():
    f = cn.parallel(lambda x: tf.reduce_sum(x, axis=0), devices=2, join="sum")
    close(f(tf.ones([6, 3])), [6.0, 6.0, 6.0])  # slices of 3 rows, and 3 columns


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x, tf.ones([4, 2])),
        lambda x: (x, tf.transpose(x) @ x),
        lambda x: (x, tf.transpose(x)),
        lambda x: (x, tf.map_fn(tf.identity, tf.range(4))),  # whose size the graph does not tell
    ],
)
def test_an_output_of_as_many_rows_as_a_slice_by_chance_is_not_concatenated(fn):
    with pytest.raises(cn.InvalidArgument, match=r"output\[1\].*its size is the same for every slice"):
        cn.parallel(fn, devices=2)(tf.ones([8, 4]))


def test_what_a_loop_makes_for_every_row_is_concatenated():
    close(cn.parallel(lambda x: tf.map_fn(tf.square, x), devices=2)(tf.range(5.0)), tf.range(5.0) ** 2)


def test_rows_of_a_table_are_added_and_not_taken_for_examples():
    def rows(ids):
        return tf.IndexedSlices(tf.ones([2, 3]), ids[:2], dense_shape=tf.constant([5, 3]))

    ids = tf.constant([0, 1, 1, 4])
    close(tf.convert_to_tensor(cn.parallel(rows, devices=2, join="sum")(ids))[:, 0], [1, 2, 0, 0, 1])
    with pytest.raises(cn.InvalidArgument, match="no batch dim"):
        cn.parallel(rows, devices=2)(ids)


@pytest.mark.parametrize("join", ["mean", *long("sum")])
def test_sums_follow_the_links(monkeypatch, join):
    """Peers {0,1} and {2,3} add among themselves first; only then does one sum go between the pairs."""
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(
        hardware, "topology", lambda: cn.Topology.groups([[0, 1], [2, 3], [4], [5], [6], [7]])
    )
    f = cn.parallel(lambda x: tf.reduce_sum(x, axis=0), devices=4, join=join)
    x = tf.reshape(tf.range(24.0), [8, 3])
    ops = f.placement(x).ops
    adds = {row.actual for row in ops if row.op in ("AddN", "AddV2") and row.phase == "forward"}
    assert adds == {"/device:CPU:0", "/device:CPU:2"}  # TensorFlow joins the two adds on CPU:0
    expected = tf.reduce_sum(x, axis=0) / (1 if join == "sum" else 4)
    assert np.array_equal(f(x), expected)  # whole numbers, and a quarter of them: exact


@pytest.mark.parametrize("shape", [[8, 3], [None, 3]])
def test_an_output_of_fixed_size_is_not_concatenated(shape):
    """Four times three column sums are not the column sums."""
    fast = tf.function(cn.parallel(lambda x: tf.reduce_sum(x, axis=0), devices=4), autograph=False)
    with pytest.raises(cn.InvalidArgument, match=r"float32\[3\]': has no batch dim .* join=\"mean\""):
        fast.get_concrete_function(tf.TensorSpec(shape))


def test_flattened_and_filtered_batches_are_still_batches():
    x = tf.reshape(tf.range(8.0), [4, 2])
    flat = cn.parallel(lambda x: tf.reshape(x, [-1]), devices=2, join="mean")
    close(flat(x), tf.range(8.0))
    filtered = cn.parallel(lambda x: tf.boolean_mask(x, x >= 0), devices=2, join="sum")
    close(filtered(tf.range(4.0)), tf.range(4.0))


def test_concatenation_knows_a_flattened_batch():
    close(cn.parallel(lambda x: tf.reshape(x, [-1]), devices=2)(tf.ones([4, 2])), np.ones(8))


def test_a_join_where_the_batch_size_is_not_known():
    fast = cn.parallel(lambda x: (tf.reduce_sum(x, axis=0), 2 * x), devices=2, join="sum")
    total, rows = tf.function(fast, input_signature=[tf.TensorSpec([None, 3])])(tf.ones([6, 3]))
    close(total, [6.0, 6.0, 6.0])
    close(rows, 2 * np.ones([6, 3]))


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(cn.InvalidArgument, match="stack"):
        cn.parallel(lambda x: tf.reduce_max(x), devices=2, join="mean")(tf.constant([1, 2, 3]))


@pytest.mark.parametrize("bad", ["average", None, 1])
def test_unknown_join(bad):
    with pytest.raises(cn.InvalidArgument, match="must be one of concat, mean, sum, stack"):
        cn.parallel(lambda x: x, join=bad)


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 200), devices=st.integers(1, 8), join=st.sampled_from(["mean", "sum"]))
def test_any_join_of_any_batch(rows, devices, join):
    """A loss over the whole batch, and its gradient; to the rounding of float64."""
    x = tf.constant(RNG.normal(size=(rows, 3)))
    w = tf.Variable(RNG.normal(size=3))
    reduced = {"mean": tf.reduce_mean, "sum": tf.reduce_sum}[join]

    def loss(x):
        return reduced(tf.linalg.matvec(x, w) ** 2)

    def run(call):
        with tf.GradientTape() as tape:
            value = call(x)
        return value, tape.gradient(value, w)

    for a, b in zip(run(cn.parallel(loss, devices=devices, join=join)), run(loss), strict=True):
        close(a, b, 1e-12)
