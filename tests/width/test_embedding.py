"""A table of words whose rows or columns are in parts, against Keras's on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from wide import CLOSE

import colonnade as cn


@pytest.mark.parametrize("split", ["columns", "rows"])
def test_embedding_equals_keras(split):
    ids = tf.constant([[0, 10, 3], [3, 3, 9]])
    keras.utils.set_random_seed(3)
    plain = keras.layers.Embedding(11, 6)
    keras.utils.set_random_seed(3)
    layer = cn.width.Embedding(11, 6, split=split, devices=4)
    found, wanted = layer(ids), plain(ids)
    np.testing.assert_array_equal(found, wanted)
    for model in (layer, plain):
        optimizer = keras.optimizers.SGD(0.1)

        @tf.function(autograph=False)
        def step(model=model, optimizer=optimizer):
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(model(ids) ** 2)
            gradients = tape.gradient(value, model.trainable_variables)
            assert all(isinstance(g, tf.IndexedSlices) for g in gradients)
            optimizer.build(model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        step()
    table = layer.embeddings.numpy()
    np.testing.assert_allclose(table, plain.embeddings, **CLOSE)


def test_a_word_outside_the_vocabulary():
    for split in ("columns", "rows"):
        layer = cn.width.Embedding(11, 6, split=split, devices=3)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 11\)"):
            layer(tf.constant([3, 11]))


def test_embedding_hands_its_parts_on():
    ids = tf.constant([[0, 10, 3], [3, 3, 9]])
    model = keras.Sequential(
        [
            keras.Input([3], dtype="int32"),
            cn.width.Embedding(11, 8, gather=False, devices=4),
            cn.width.Dense(5, split="rows", devices=4),
        ]
    )
    table = model.layers[0].embeddings.numpy()
    kernel = model.layers[1].kernel.numpy()
    np.testing.assert_allclose(model(ids), table[ids] @ kernel, **CLOSE)
