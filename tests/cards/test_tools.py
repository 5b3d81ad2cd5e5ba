"""The tools tell of cards what is true: where an op ran, whether a copy arrived, what the doctor says."""

import numpy as np
import tensorflow as tf
from fake import copies

import colonnade as cn
from colonnade.hardware.probes import copies as copying
from colonnade.run.data.feed import feed

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))


def test_placement_tells_the_card_of_every_op():
    def double(x):
        with tf.device("/device:GPU:3"):
            return tf.matmul(x, x)

    report = cn.placement(double, tf.ones([4, 4]))
    (row,) = [row for row in report.ops if row.op == "MatMul"]
    assert (row.actual, row.calls) == ("/device:GPU:3", None)


def test_a_copy_between_cards_arrives_where_it_should():
    arrival = copying.send(copying.to_target, CARDS[1], CARDS[5], 2**20)
    assert (arrival.intact, arrival.read_on) == (True, "GPU:5")


def test_arrays_stay_on_the_host():
    data = np.ones([1000, 100], "float32")
    copies()
    for _ in feed((data, data), 100, "fit()"):
        pass
    assert sum(size for _, size in copies().values()) == 0
