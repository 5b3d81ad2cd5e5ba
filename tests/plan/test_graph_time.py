import tensorflow as tf

from colonnade.run.plan import graph_time as module
from colonnade.run.plan.graph_time import graph_time


def test_all_of_a_piece_is_run_each_time(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.01)
    monkeypatch.setattr(module, "ROUNDS", 2)
    made = tf.Variable(0)

    def piece():
        with tf.control_dependencies([made.assign_add(1)]):
            return tf.ones([3, 3]), "no tensor", tf.constant([True])

    took = graph_time(piece)
    assert 0 < took < 1
    assert made.numpy() >= 1 + 2 + 2 * 2


def test_more_work_takes_longer(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 0.05)
    w = tf.Variable(tf.ones([400, 400]))

    def products(count):
        def piece():
            x = w.read_value()
            for _ in range(count):
                x = tf.tanh(x @ w)
            return x

        return piece

    assert graph_time(products(20)) > graph_time(products(1))
