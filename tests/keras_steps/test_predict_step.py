"""Predictions by slices and in whole batches, against Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(9, 4)).astype("float32")


class Several(keras.Model):
    """A dense tensor, a sparse one and a ragged one."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        longer = tf.RaggedTensor.from_tensor(x, lengths=tf.argmax(x, axis=-1))
        return {"dense": self.dense(x), "sparse": tf.sparse.from_dense(tf.nn.relu(x)), "ragged": longer}


def plain(predictions):
    kinds = {"sparse": tf.sparse.to_dense, "ragged": lambda value: value.to_tensor(shape=[None, 4])}
    return [np.asarray(kinds.get(name, np.asarray)(value)) for name, value in predictions.items()]


@pytest.mark.parametrize("steps", [1, 4])
def test_outputs_of_any_kind_come_in_order(steps):
    keras.utils.set_random_seed(0)
    made = Several()
    made.compile("sgd", steps_per_execution=steps)
    expected = made.predict(X, batch_size=4, verbose=0)
    found = cn.predict(made, X, batch_size=4, devices=2, verbose=0)
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]
    for a, b in zip(plain(found), plain(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


class Graph(keras.Model):
    """One answer for a graph, and one for each of its nodes."""

    def __init__(self):
        super().__init__()
        self.node, self.whole = keras.layers.Dense(2), keras.layers.Dense(1)

    def call(self, graph):
        nodes, edges = graph
        heard = ops.segment_sum(ops.take(nodes, edges[:, 0], axis=0), edges[:, 1], ops.shape(nodes)[0])
        return {"whole": self.whole(ops.mean(heard, axis=0, keepdims=True)), "node": self.node(nodes + heard)}


def graphs(count):
    def made():
        rng = np.random.default_rng(1)
        for _ in range(count):
            nodes, edges = rng.integers(2, 6), rng.integers(1, 9)
            yield (rng.normal(size=(nodes, 3)), rng.integers(0, nodes, (edges, 2))), np.ones([1, 1])

    kinds = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2], "int32")), tf.TensorSpec([1, 1])
    data = tf.data.Dataset.from_generator(made, output_signature=kinds)
    return data.apply(tf.data.experimental.assert_cardinality(count))


def test_batches_that_cannot_be_cut_go_whole_to_the_devices():
    """Seven graphs on three devices: the last group is smaller."""
    made = Graph()
    expected = made.predict(graphs(7), verbose=0)
    for options in ({"devices": 1}, {"devices": 3, "per_device": True}):
        found = cn.predict(made, graphs(7), verbose=0, **options)
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    assert made.steps_per_execution == 1
    with pytest.raises(
        cn.InvalidArgument, match=r"predict\(\).*\n.*differ in their numbers of rows.*per_device"
    ):
        cn.predict(made, graphs(7), devices=2, verbose=0)
    made.compile("sgd", {"whole": "mse"})
    with pytest.raises(
        cn.InvalidArgument, match=r"differ in their numbers of rows.*per_device=True.*split=\["
    ):
        cn.evaluate(made, graphs(2), devices=2, verbose=0)


class Number(keras.Model):
    def call(self, graph):
        return ops.sum(graph[0]) - ops.sum(ops.cast(graph[1], "float32"))


def test_a_number_for_each_batch():
    made = Number()
    expected = made.predict(graphs(5), verbose=0)
    assert expected.shape == (5,)
    for options in ({"devices": 1}, {"devices": 2, "per_device": True}):
        found = cn.predict(made, graphs(5), verbose=0, **options)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


class Tables(keras.Model):
    def call(self, inputs):
        items, table = inputs
        return ops.take(table, items, axis=0)


def test_inputs_that_every_device_gets_whole():
    items, table = tf.constant([2, 0, 1, 2, 1]), tf.constant(X[:3])
    data = tf.data.Dataset.from_tensors((items, table)).map(lambda *x: (x, tf.zeros([1])))
    found = cn.predict(Tables(), data, devices=2, split=[0], verbose=0)  # targets are for nobody
    np.testing.assert_array_equal(found, X[[2, 0, 1, 2, 1]])


def test_generators_may_leave_out_targets():
    made = Several()
    found = cn.predict(made, (batch for batch in [(X, None)] * 2), steps=2, devices=2, verbose=0)
    np.testing.assert_allclose(found["dense"][9:], made.predict(X, verbose=0)["dense"], rtol=1e-6)
