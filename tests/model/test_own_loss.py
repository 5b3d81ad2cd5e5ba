"""What `compute_loss` is given where a step of the model's own calls it."""

import keras
import pytest
import tensorflow as tf
from keras import ops

from colonnade.run.model.own_loss import OwnLoss

X, Y = tf.ones([2, 3]), tf.zeros([2, 1])


class Reads(keras.Sequential):
    def compute_loss(self, x, y, y_pred, sample_weight=None):
        return ops.shape(x)[0], ops.shape(y)[0], ops.shape(y_pred)[0]


def doubled(value):
    return value if value is None else tf.concat([value, value], 0)


def model(kind=keras.Sequential, loss="mse"):
    made = kind([keras.Input([3]), keras.layers.Dense(1)])
    made.compile("sgd", loss)
    return made


@pytest.mark.parametrize(("gathers", "rows"), [(False, (2, 2, 2)), (True, (4, 4, 4))])
def test_all_that_an_own_loss_reads_is_of_the_batch_where_that_matters(gathers, rows):
    made = model(Reads)
    with OwnLoss(made, doubled, gathers=gathers).entered() as own:
        assert not own.called
        assert made.compute_loss(X, Y, y_pred=made(X)) == rows
        assert own.called
    assert made.compute_loss(X, Y, Y) == (2, 2, 2)
    assert "compute_loss" not in vars(made)


def test_kerass_own_loss_does_not_read_the_inputs():
    made, seen = model(loss=keras.losses.MeanSquaredError(reduction="sum")), []

    def whole(value):
        seen.append(value)
        return doubled(value)

    with OwnLoss(made, whole, gathers=True).entered():
        loss = made.compute_loss(x=tf.constant(["a", "b"]), y=Y, y_pred=Y + 1.0)
    assert float(loss) == 4.0
    assert all(value is None or value.dtype == tf.float32 for value in seen)


def test_a_mask_says_that_it_matters_and_a_branch_is_left_alone():
    made, found = model(), tf.ones([2, 1])
    masked = tf.ones([2, 1])
    masked._keras_mask = tf.constant([[True], [False]])
    gathered = []

    def whole(value):
        gathered.append(value)
        return value

    with OwnLoss(made, whole, gathers=False).entered():
        made.compute_loss(X, Y, found)
        assert not gathered
        made.compute_loss(X, Y, masked)
        assert any(one is masked for one in gathered)
        gathered.clear()
        tf.function(lambda: made.compute_loss(X, Y, masked), autograph=False)()
    assert not gathered
