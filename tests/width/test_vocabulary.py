"""Cross entropy over classes that are split over devices; no device has all logits."""

import numpy as np
import pytest
import tensorflow as tf
from wide import WIDTH, autoencoder, sparse

import colonnade as cn


def test_no_op_has_all_logits():
    model, x = autoencoder(4), sparse(width=WIDTH)
    labels = tf.constant([0, 1002, 500, 250, 251, 7])

    @tf.function(autograph=False)
    def both():
        with tf.GradientTape() as tape:
            value = cn.width.softmax_cross_entropy(labels, model(x))
        return value, tape.gradient(value, model.trainable_variables)

    graph = both.get_concrete_function().graph
    shapes = [out.shape for op in graph.get_operations() for out in op.outputs if out.shape.rank == 2]
    assert [6, 251] in shapes
    assert [6, WIDTH] not in shapes
    assert [32, WIDTH] not in shapes


@pytest.mark.parametrize("shape", [(7,), (2, 3)])
@pytest.mark.parametrize("num_devices", [1, 3])
def test_softmax_cross_entropy_of_class_numbers(shape, num_devices):
    rng = np.random.default_rng(2)
    x = tf.constant(rng.normal(size=[*shape, 4]).astype("float32") * 50)  # large logits
    labels = tf.constant(rng.integers(0, 11, shape))
    layer = cn.width.Dense(11, gather=False, devices=num_devices)

    def both(loss):
        with tf.GradientTape() as tape:
            tape.watch(x)
            losses = loss(layer(x))
        return losses, tape.gradient(losses, x)

    found = both(lambda z: cn.width.softmax_cross_entropy(labels, z))
    wanted = both(lambda z: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, z.gather()))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    plain = cn.width.softmax_cross_entropy(labels, layer(x).gather())
    np.testing.assert_allclose(plain, wanted[0], rtol=1e-5, atol=1e-5)


def test_half_precision():
    layer = cn.width.Dense(9, gather=False, devices=2, dtype="mixed_float16")
    logits = layer(tf.ones([3, 4]))
    assert logits.tensors[0].dtype == tf.float16
    losses = cn.width.softmax_cross_entropy(tf.constant([0, 4, 8]), logits)
    wanted = tf.nn.sparse_softmax_cross_entropy_with_logits([0, 4, 8], tf.cast(logits.gather(), tf.float32))
    assert losses.dtype == tf.float16
    np.testing.assert_allclose(losses, wanted, rtol=1e-3)  # float16 has 11 bits


@pytest.mark.parametrize("bad", [-1, 11])
def test_labels_out_of_range(bad):
    layer = cn.width.Dense(11, gather=False, devices=3)
    for call in (cn.width.softmax_cross_entropy, tf.function(cn.width.softmax_cross_entropy)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside the valid range of \[0, 11\)"):
            call(tf.constant([3, bad]), layer(tf.ones([2, 4])))
