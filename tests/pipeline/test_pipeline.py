"""A pipeline as a model: what it says of itself, its call and its gradient, and mistakes that are named."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from piped import DENSE, TOLERANCE, X, Y, classify, mlp, skips

import colonnade as cn


def test_it_says_who_holds_what():
    pipeline = cn.Pipeline([tf.identity, tf.tanh, tf.exp], [[0, 1], [2, 3]], placement=[0, 1, 1])
    assert str(pipeline) == "CPU:0, CPU:2  identity\nCPU:1, CPU:3  tanh, exp"


def test_called_by_itself_it_is_the_model_with_its_gradient():
    for build, x in ((mlp, X), (skips, X[:7])):
        model = build()
        pipeline = cn.Pipeline(model, 2, micro_batches=3, placement=[0] + [1] * (len(cut_of(model)) - 1))

        def both(call, x=x, model=model):
            with tf.GradientTape() as tape:
                value = tf.constant(x)
                tape.watch(value)
                y = call(value)
                end = tf.reduce_sum(y**2)
            return [y, *tape.gradient(end, [value, *[v.value for v in model.trainable_variables]])]

        for a, b in zip(both(pipeline), both(model), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * max(1.0, np.abs(b).max()))

        @tf.function(input_signature=[tf.TensorSpec([None, 6])])
        def inside(x, pipeline=pipeline):
            return pipeline(x)

        np.testing.assert_allclose(inside(x), model(x), rtol=0, atol=1e-5)


def test_an_output_without_a_batch_dim_cannot_be_put_together():
    for fn in (tf.reduce_sum, lambda x: tf.reduce_sum(x, axis=0)):
        with pytest.raises(cn.InvalidArgument, match="has no batch dim"):
            cn.Pipeline([tf.identity, fn], 2, micro_batches=2)(X)


def cut_of(model):
    return cn.Pipeline(model, 1).layers


def test_an_output_that_does_not_fit_the_next_input():
    first, second = DENSE(4), DENSE(3)
    second.build([None, 5])
    pipeline = cn.Pipeline([first, second], 2)
    with pytest.raises(
        cn.InvalidArgument, match=r"stages\[1\]='dense.*cannot take what stages\[0\] returns, float32\(5, 4\)"
    ):
        cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(
            X[:40], Y[:40]
        )
    with pytest.raises(cn.InvalidArgument, match=r"cannot take what stages\[0\] returns"):
        pipeline(X)


@pytest.mark.parametrize("placement", ["auto", [0, 0, 1]])
def test_the_layer_that_does_not_fit_is_named_whatever_the_placement(placement):
    wrong = DENSE(3, name="wrong")
    wrong.build([None, 5])
    pipeline = cn.Pipeline([DENSE(4), wrong, DENSE(2)], 2, micro_batches=2, placement=placement)
    trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline)
    for run in (lambda: pipeline(X[:4]), lambda: trainer.train_on_batch(X[:4], Y[:4])):
        with pytest.raises(cn.InvalidArgument) as caught:
            run()
        assert "stages[1]='wrong': cannot take what stages[0] returns, float32(2, 4)" in str(caught.value)
        assert "Traceback" not in str(caught.value)


def test_rows_that_are_called_draw_numbers_of_their_own():
    tf.random.set_seed(2)

    def noisy(x):
        return x + tf.random.uniform([1], seed=3)

    pipeline = cn.Pipeline([lambda x: 2 * x, noisy], [[0, 1], [2, 3]], micro_batches=1)
    assert len(set(pipeline(tf.ones([2, 1])).numpy().ravel().tolist())) == 2
