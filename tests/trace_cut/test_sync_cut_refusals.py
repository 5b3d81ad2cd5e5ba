"""Synchronised layers where a trace cannot be cut: refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from norms import CLOSE, batches, norm

import colonnade as cn


def refused(loss, *batch, **options):
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=2, **options)
    with pytest.raises(cn.InvalidArgument) as error:
        trainer.train_on_batch(*batch)
    return str(error.value)


@pytest.mark.parametrize("kind", ["function", *long("loop", "branch")])
def test_synchronisation_in_a_nested_function_is_refused(kind):
    layer, w = norm(name="deep"), tf.Variable(1.0)
    layer.build([None, 4])

    @tf.function
    def function(x):
        return layer(x, training=True)

    def nested(x):
        if kind == "function":
            return function(x)
        if kind == "loop":
            return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, layer(x, training=True)), (0, x))[1]
        return tf.cond(tf.reduce_sum(x) > 0, lambda: layer(x, training=True), lambda: x)

    def loss(x):
        return w * tf.reduce_sum(nested(x) ** 3, axis=1)

    x = next(batches(12))[0]
    said = refused(loss, x)
    assert "deep" in said
    assert "cannot be cut" in said
    assert np.isfinite(cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=1).train_on_batch(x).loss)


def test_a_nested_function_that_was_traced_before_is_refused():
    layer, w = norm(name="early"), tf.Variable(1.0)
    function = tf.function(lambda x: layer(x, training=True))
    x = next(batches(12))[0]
    function(tf.constant(x[:6]))
    said = refused(lambda x: w * tf.reduce_sum(function(x) ** 3, axis=1), x)
    assert "early" in said
    assert "traced before" in said


def test_a_mask_which_keras_does_not_synchronise_is_refused():
    layer, w = norm(name="masked"), tf.Variable(1.0)

    def loss(x):
        normalised = layer(
            tf.reshape(x, [-1, 2, 2]), training=True, mask=tf.reshape(x, [-1, 2, 2])[..., 0] > 0
        )
        return w * tf.reduce_sum(normalised**3, axis=[1, 2])

    said = refused(loss, next(batches(12))[0])
    assert "masked" in said
    assert "mask" in said


def test_sums_that_depend_on_the_size_of_the_slice_are_refused():
    w = tf.Variable(1.0)

    def loss(x):
        for _ in range(x.shape[0]):
            x = x - tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(x)) / 13.0
        return w * x[:, 0]

    assert "slices of another size" in refused(loss, next(batches(13))[0])


def test_parallel_and_verify_refuse_it_by_name():
    model = keras.Sequential([keras.Input([4]), norm(name="both")])
    x = tf.constant(next(batches(12))[0])

    def training(x):
        return model(x, training=True)

    for call in (
        lambda: cn.parallel(training, devices=2)(x),
        lambda: cn.make_parallel(training, 2, x=x),
        lambda: cn.verify(training, x, devices=2),
    ):
        with pytest.raises(cn.InvalidArgument, match=r"(?s)both.*cn\.Trainer or cn\.fit"):
            call()
    np.testing.assert_allclose(cn.parallel(training, devices=1)(x), training(x), **CLOSE)
    # For inference nothing is to be synchronised.
    np.testing.assert_allclose(cn.parallel(model, devices=2)(x), model(x), **CLOSE)
