"""Evaluation in a pipeline: every example once, whatever the micro-batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [7, 2])
def test_the_mean_is_that_of_all_examples(rows):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    pipeline = cn.Pipeline(layers, [1, 2], micro_batches=3)
    x = np.random.default_rng(0).normal(size=[rows, 2]).astype("float32")

    def loss(x):
        y = pipeline(x)
        return tf.squeeze(y**2, 1), {"size": tf.abs(tf.squeeze(y, 1))}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=pipeline)
    trainer.train_on_batch(x)
    scored = trainer.evaluate((x,), batch_size=5)
    y = layers[1](layers[0](x)).numpy()
    assert scored.loss == pytest.approx(np.mean(y**2), rel=1e-5)
    assert scored.metrics["size"] == pytest.approx(np.mean(np.abs(y)), rel=1e-5)
