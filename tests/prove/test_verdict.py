"""`prove=` of `Trainer.fit`: what is refused, with its cause, and what is let go."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from blocks import DTYPE, LOOKUPS, ROWS, WIDTH, model

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")


def fit(loss, *data, devices=2, optimizer=None, **options):
    trainer = cn.Trainer(loss, optimizer or keras.optimizers.SGD(0.1), devices=devices)
    return trainer.fit(data or (X,), batch_size=8, steps=2, **options)


def variable():
    return tf.Variable(tf.ones([4]))


def test_a_table_whose_gradient_is_dense_for_slices_and_sparse_for_the_batch_is_found():
    """What an adaptive optimizer makes of repeated rows shows in no gradient."""
    made = model(("embedding by size",), regularised=False)
    data = RNG.normal(size=[4, WIDTH]), RNG.integers(0, ROWS, [4, LOOKUPS]), np.ones([4, 1])

    def loss(x, ids, y):
        return tf.reduce_mean((made([x, ids]) - tf.cast(y, DTYPE)) ** 2, axis=1)

    adam = keras.optimizers.Adam(0.1)
    trainer = cn.Trainer(loss, adam, devices=2)
    before = made.get_weights()
    with pytest.raises(cn.InvalidArgument, match="other rows for slices of 2 than for 4"):
        trainer.fit(data, batch_size=4, steps=1, progress=False)
    for a, b in zip(made.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_rows_of_which_slices_have_more_than_the_batch_are_found():
    """Their sum is right, and Adam squares them one by one."""
    table, w = tf.Variable(RNG.normal(size=[6, 4]).astype("float32"), name="table"), variable()
    ids = RNG.integers(0, 3, [16])  # two slices have the same

    def by_python(x, ids):
        rows = tf.numpy_function(np.unique, [ids], tf.int64)
        rows.set_shape([None])
        found = tf.gather(tf.gather(table, rows), tf.searchsorted(rows, ids))
        return tf.reduce_sum((x * w + found) ** 2, axis=1)

    with pytest.warns(UserWarning, match="calls Python"):  # nor may it be called once more
        fit(by_python, X, ids, progress=False)

    def by_ops(x, ids):
        once = tf.map_fn(lambda row: row, tf.unique(ids).y)  # through which nobody looks
        found = tf.gather(tf.gather(table, once), tf.unique(ids).idx)
        return tf.reduce_sum((x * w + found) ** 2, axis=1)

    before = table.numpy()
    with pytest.raises(cn.InvalidArgument, match=r"table:0.*: is looked up at rows of which a"):
        fit(by_ops, X, ids, progress=False)
    np.testing.assert_array_equal(table.numpy(), before)


def test_a_scalar_that_is_a_sum_is_refused_and_a_warning_goes_on():
    w = variable()

    def total(x):
        return tf.reduce_sum((x * w) ** 2)

    with pytest.raises(cn.InvalidArgument, match="loss='total': is a sum over the examples"):
        fit(total, progress=False)
    np.testing.assert_array_equal(w.numpy(), 1.0)
    with pytest.warns(UserWarning, match="is a sum over the examples"):
        fit(total, progress=False, prove="warn")
    fit(total, progress=False, prove=False)
    fit(total, progress=False, devices=1)


def test_examples_that_influence_each_other_are_refused():
    w = variable()

    def centred(x):
        return tf.reduce_sum(((x - tf.reduce_mean(x, axis=0)) * w) ** 2, axis=1)

    with pytest.raises(cn.InvalidArgument, match=r"is not the mean.*influence each other.*devices=1"):
        fit(centred, progress=False)


def test_what_is_documented_to_differ_is_let_go_and_said(capsys):
    dense, norm, dropout = keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)

    def normed(x):
        return tf.reduce_mean((norm(dense(x), training=True) - 1) ** 2, axis=1)

    def dropped(x, training):
        return tf.reduce_mean((dropout(dense(x), training=training) - 1) ** 2, axis=1)

    def drawn(x):
        return tf.reduce_mean((dropout(dense(x), training=True) - 1) ** 2, axis=1)

    def plain(x):
        return tf.reduce_mean((dense(x) - 1) ** 2, axis=1)

    for loss in (normed, dropped, drawn, plain):
        fit(loss)
    said = [line for line in capsys.readouterr().out.splitlines() if "proved" in line]
    assert [line.partition(":")[0] for line in said] == [
        "proved on the first batch, without the statistics of the slices of training",
        "proved on the first batch, without the random numbers of training",
        "proved on the first batch, without the random numbers of training",
        "proved on the first batch",
    ]
    assert norm.trainable


def test_random_numbers_hide_no_mistake_and_those_of_a_loop_are_warned_of():
    dense, dropout = keras.layers.Dense(4), keras.layers.Dropout(0.5)

    def total(x):
        return tf.reduce_sum((dropout(dense(x), training=True) - 1) ** 2)

    def drawn_in_a_loop(x):
        def body(i, noise):
            return i + 1, noise + tf.random.normal(tf.shape(x))

        _, noise = tf.while_loop(lambda i, _: i < 2, body, (0, tf.zeros_like(x)))
        return tf.reduce_mean((dense(x) - noise) ** 2, axis=1)

    with pytest.raises(cn.InvalidArgument, match="is a sum over the examples"):
        fit(total, progress=False)
    with pytest.warns(UserWarning, match="not proved on the first batch: it draws random numbers"):
        fit(drawn_in_a_loop, progress=False)


def test_what_prints_is_looked_at_without_a_word_and_what_calls_python_not_at_all(capfd):
    w, called = variable(), []

    def loud(x):
        tf.print("here")
        return tf.reduce_sum((x * w) ** 2, axis=1)

    def loud_sum(x):
        tf.cond(x[0, 0] > 0, lambda: tf.print("here"), lambda: tf.print("there"))
        return tf.reduce_sum((x * w) ** 2)

    def calls(x):
        tf.numpy_function(lambda: called.append(1), [], [])
        return tf.reduce_sum((x * w) ** 2, axis=1)

    fit(loud)
    captured = capfd.readouterr()
    assert captured.err.count("here") == 2 * 2  # two steps on two devices
    assert "proved on the first batch: largest difference" in captured.out
    with pytest.raises(cn.InvalidArgument, match="is a sum over the examples"):
        fit(loud_sum, progress=False)
    assert "here" not in capfd.readouterr().err
    with pytest.warns(UserWarning, match="not proved on the first batch: it calls Python"):
        fit(calls, progress=False)
    assert len(called) == 2 * 2


def test_other_values_are_refused():
    with pytest.raises(cn.InvalidArgument, match="prove='yes'"):
        fit(lambda x: x, prove="yes")
