import keras
import pytest
import tensorflow as tf

import colonnade as cn


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cn.Pipeline([]), "stages=[]: holds no stage"),
        (lambda: cn.Pipeline(3), "must be a list of functions or layers"),
        (lambda: cn.Pipeline([tf.identity, 3]), "stages[1]=3: is neither a function nor a layer"),
        (lambda: cn.Pipeline([tf.identity], 2), "devices=2: is more than there are layers to deal out, 1"),
        (lambda: cn.Pipeline([tf.identity], 9), "TensorFlow has 8 devices here"),
        (lambda: cn.Pipeline([tf.identity] * 3, [[0, 1], [2]]), "must be rows of the same length"),
        (lambda: cn.Pipeline([tf.identity] * 3, [[0, 1], [1, 2]]), "names a device twice"),
        (lambda: cn.Pipeline([tf.identity], 1, schedule="2f2b"), "must be one of sequential, gpipe, 1f1b"),
        (lambda: cn.Pipeline([tf.identity], 1, micro_batches=0), "must be a whole number from 1 up"),
        (lambda: cn.Pipeline([tf.identity] * 2, 2, placement=[1, 0]), "must name the stages 0 to 1 in order"),
        (lambda: cn.Pipeline([tf.identity] * 2, 2, placement=[0]), "must have 2 entries, one per layer"),
        (lambda: cn.Pipeline([tf.identity] * 2, 2, placement="even"), "must be auto, or a list"),
        (lambda: cn.Pipeline([tf.identity], 1, tied=3), "must be a list of variables or layers"),
        (lambda: cn.Pipeline([keras.layers.Masking()], 1), "makes a mask"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


def test_all_bad_settings_in_one_error():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Pipeline([tf.identity], 2, micro_batches=-1, schedule="", placement=[0, 0])
    assert len(caught.value.problems) == 4
