"""What a pipeline cannot train is told by name, before anything is trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

X = np.ones([8, 2], "float32")


def pipeline(*layers, **options):
    return cn.Pipeline([*layers, keras.layers.Dense(1)], [1, 2], **{"micro_batches": 2, **options})


def refused(pipeline, loss):
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=pipeline)
    with pytest.raises(cn.InvalidArgument) as caught:
        trainer.train_on_batch(X)
    return str(caught.value)


def test_a_loss_that_does_not_call_it():
    w = tf.Variable(1.0)
    assert "does not call the pipeline" in refused(
        pipeline(keras.layers.Dense(2)), lambda x: w * tf.reduce_sum(x, 1)
    )


def test_a_loss_that_calls_it_in_a_branch():
    stages = pipeline(keras.layers.Dense(2))
    stages(X)

    def loss(x):
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: stages(x), lambda: tf.zeros([tf.shape(x)[0], 1]))
        return tf.squeeze(y, 1)

    assert "inside a loop, a branch or a tf.function" in refused(stages, loss)


def test_synchronised_batch_normalisation():
    stages = pipeline(keras.layers.BatchNormalization(synchronized=True))
    assert "synchronized=True" in refused(stages, lambda x: tf.squeeze(stages(x, training=True), 1))
