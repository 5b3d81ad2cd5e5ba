"""Where there are cards, what Keras computes with seeds is put on the host, and nothing else is."""

import keras
import pytest
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.run.move.seed_places import HOST, is_seed, seed_place
from colonnade.run.trace.traced import trace


def test_the_state_of_a_generator_is_kept_on_the_host_for_cards():
    assert seed_place("/device:GPU:3") == HOST
    assert seed_place("/device:CPU:3") == "/device:CPU:3"
    assert is_seed(keras.random.SeedGenerator(1).state.value)
    assert not is_seed(tf.Variable(1.0))


@pytest.mark.parametrize("cards", [True, False])
def test_the_arithmetic_of_seeds(monkeypatch, cards):
    monkeypatch.setattr(hardware, "has_cards", lambda: cards)
    dropout, counter = keras.layers.Dropout(0.5), tf.Variable(0, dtype=tf.int64)

    def drawn(x):
        counter.assign_add(1)
        return dropout(x * 3.0, training=True) + tf.cast(counter * 2, tf.float32)

    traced = trace(drawn, tf.TensorSpec([4, 3]))
    ops = traced.concrete.graph.get_operations()
    placed = {op.type for op in ops if op.device and op.type != "Const"}
    assert placed == ({"Mul", "AddV2", "FloorMod", "Cast"} if cards else set())
    assert all(op.outputs[0].dtype.is_integer for op in ops if op.device)
    assert not any(op.device for op in ops if "Stateless" in op.type or op.type == "ReadVariableOp")
    with tf.device("/device:CPU:0"):
        assert traced.on("/device:CPU:0", [tf.ones([4, 3])])[0].shape == [4, 3]
