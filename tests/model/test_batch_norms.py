"""Batch normalisations whose statistics are those of a slice, found in a trace."""

import keras
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.model.batch_norms import frozen, norms_of_slices
from colonnade.run.trace.traced import Traced


def test_norms_of_slices_are_those_that_are_not_synchronised_and_rest_while_they_are_frozen():
    own, common = keras.layers.BatchNormalization(), keras.layers.BatchNormalization(synchronized=True)
    x = keras.Input([3])
    model = keras.Model(x, [own(x), common(x)])
    batch = Arguments((tf.constant([[1.0, 2.0, 4.0], [3.0, 6.0, 8.0]]),), {}, ("x",))

    def trace():
        return Traced(lambda x: model(x, training=True)[0], batch)

    assert norms_of_slices(trace()) == [own]
    with frozen([own]):
        assert not own.trainable
        assert norms_of_slices(trace()) == []
    assert own.trainable
