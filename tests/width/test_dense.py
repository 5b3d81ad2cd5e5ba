"""Layers split by width against the same layers on one device.

A sum over columns that are in parts is added in another order than the whole one, so results agree
to a few units in the last place of float32: 1e-5 of the largest value here. Where no sum is cut
(columns, lookups) the same tolerance covers that a narrower matrix product may be blocked otherwise.
"""

from collections import Counter
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from kernels import plain
from wide import CLOSE, WIDTH, autoencoder, plain_autoencoder, sparse

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.move.on_device import on


def loss_and_gradients(model, x, loss):
    @tf.function(autograph=False)
    def both():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(model(x)))
        return value, tape.gradient(value, model.trainable_variables)

    return both()


def whole(model, gradients):
    """The gradients of parts put together, in the order of a model without parts."""
    by_part = {v.value.ref(): g for v, g in zip(model.trainable_variables, gradients, strict=True)}
    return [
        np.concatenate([tf.convert_to_tensor(by_part[p.value.ref()]) for p in logical.parts], logical.axis)
        for layer in model.layers
        for logical in layer.logical
    ]


@pytest.mark.parametrize("devices", [*long(1, 2), 4, [5, 2, 7]])
def test_sparse_autoencoder_equals_one_device(devices):
    """1 003 columns over 4 devices; loss and gradients are those of plain Keras layers."""
    x = sparse(width=WIDTH)
    dense = tf.sparse.to_dense(x)
    model, plain = autoencoder(devices), plain_autoencoder()
    value, gradients = loss_and_gradients(model, x, lambda z: cn.width.softmax_cross_entropy(x, z))
    wanted, wanted_gradients = loss_and_gradients(
        plain, dense, lambda z: -tf.reduce_sum(dense * tf.nn.log_softmax(z), axis=1)
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    for found, expected in zip(whole(model, gradients), wanted_gradients, strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


@pytest.mark.long
def test_work_is_done_where_the_part_is():
    """Forward, backward and the update of each part run on its device."""
    model, x = autoencoder(4, width=53, inner=8), sparse(width=53)
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    def step():
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(cn.width.softmax_cross_entropy(x, model(x)))
        optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        return value

    report = cn.placement(step)
    assert report.moved == ()
    for op, wanted in {"MatMul": 2 + 4, "SparseTensorDenseMatMul": 2, "Exp": 1, "ReluGrad": 1}.items():
        rows = [row for row in report.ops if op == plain(row.op)]
        spread = Counter(row.actual for row in rows)
        extra = {"/device:CPU:0": 1} if op == "ReluGrad" else {}  # that of the sum
        assert spread == Counter({f"/device:CPU:{i}": wanted for i in range(4)}) + Counter(extra), op


@pytest.mark.long
def test_the_trainer_updates_each_part_where_it_is():
    first = cn.width.Dense(6, gather=False, devices=3)
    second = cn.width.Dense(2, split="rows", devices=3)

    def loss(x):
        return tf.reduce_sum(second(first(x)) ** 2, axis=1)

    engine = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=1)._engine
    arguments = Arguments((tf.ones([4, 5]),), {}, ["x"])
    engine.prepare(arguments)
    report = cn.placement(lambda: engine.step(arguments).loss)
    roots = Counter(row.actual for row in report.ops if row.op == "Sqrt")
    # Adam takes two roots per variable: of two kernels and a bias; the first device has the bias of the sum.
    assert roots == {"/device:CPU:0": 8, "/device:CPU:1": 6, "/device:CPU:2": 6}
    # The sums that tell whether gradients are finite are taken there as well.
    sums = Counter(row.actual for row in report.ops if row.op == "Sum")
    assert sums["/device:CPU:1"] == sums["/device:CPU:2"] == 3


def graph_ops(function, *args):
    graph = tf.function(function, autograph=False).get_concrete_function(*args).graph.as_graph_def()
    return Counter(node.op for node in graph.node)


def test_columns_then_rows_need_one_reduction():
    x = tf.ones([3, 6])
    for gather, reductions, gathers in ((False, 1, 0), (True, 1, 1)):
        first = cn.width.Dense(10, "relu", gather=gather, devices=4)
        second = cn.width.Dense(5, split="rows", devices=4)
        second(first(x))
        ops = graph_ops(lambda x, first=first, second=second: second(first(x)), x)
        # Three sums, each of a fixed shape, for four devices.
        assert (ops["EnsureShape"], ops["ConcatV2"]) == (3 * reductions, gathers)


def test_the_gradient_of_columns_then_rows_needs_one_reduction_more():
    """That of the copies of x; where x is data it is pruned."""
    x = tf.ones([3, 6])
    first = cn.width.Dense(10, "relu", gather=False, devices=4)
    second = cn.width.Dense(5, split="rows", devices=4)
    second(first(x))

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = second(first(x))
        return tape.gradient(y, x)

    ops = graph_ops(gradient, x)
    assert (ops["EnsureShape"], ops["ConcatV2"]) == (2 * 3, 0)


@pytest.mark.parametrize("split", ["columns", "rows"])
@pytest.mark.parametrize("shape", [(6, 10), (2, 3, 10)])
def test_dense_equals_keras(split, shape):
    x = tf.constant(np.random.default_rng(0).normal(size=shape).astype("float32"))
    keras.utils.set_random_seed(3)
    plain = keras.layers.Dense(7, "tanh", bias_initializer="uniform")
    keras.utils.set_random_seed(3)
    layer = cn.width.Dense(7, "tanh", bias_initializer="uniform", split=split, devices=3)

    def both(layer):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return y, tape.gradient(y, x)

    for found, wanted in zip(both(layer), both(plain), strict=True):
        np.testing.assert_allclose(found, wanted, **CLOSE)


def train(num_parts, **options):
    model, x = autoencoder(num_parts, width=203, inner=16), sparse(8, 203)

    def loss(x):
        return cn.width.softmax_cross_entropy(x, model(x))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1, momentum=0.9), **options)
    losses = [trainer.train_on_batch(x).loss for _ in range(4)]
    return losses, model, trainer


@cache
def trained(num_parts):
    return train(num_parts, devices=1)


@pytest.mark.parametrize("variables", ["mirrored", *long("shared")])
def test_a_trainer_on_several_devices_is_right_too(variables):
    """Not what to do: every slice visits all parts. But the numbers are those of one device."""
    found, _, _ = train(3, devices=2, variables=variables)
    np.testing.assert_allclose(found, trained(1)[0], rtol=1e-5)


@pytest.mark.long
def test_run_twice_bit_for_bit():
    (losses, model, trainer), (again, other, _) = trained(4), train(4, devices=1)
    assert losses == again
    for a, b in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    homes = {name: device[-5:] for name, device in trainer.homes().items() if "kernel_part_2" in name}
    assert len(homes) == 2 * len(model.layers)
    assert set(homes.values()) == {"CPU:2"}


def test_training_equals_one_device():
    (found, model, _), (wanted, single, _) = trained(4), trained(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    for a, b in zip(model.layers, single.layers, strict=True):
        for mine, whole in zip(a.logical, b.logical, strict=True):
            np.testing.assert_allclose(mine.numpy(), whole.numpy(), **CLOSE)


def conv_net(num_devices):
    keras.utils.set_random_seed(4)
    tower = keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
        ]
    )
    wide = keras.Sequential(
        [
            keras.Input([32]),
            cn.width.Dense(30, "relu", gather=False, devices=num_devices),
            cn.width.Dense(12, "relu", split="rows", devices=num_devices),
            cn.width.Dense(10, gather=False, devices=num_devices),
        ]
    )
    return tower, wide


@pytest.mark.long
def test_convolutions_by_data_and_wide_layers_by_width():
    """The tower on slices of the batch, the wide layers in parts, as on one device."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=[10, 8, 8, 1]).astype("float32")
    labels = rng.integers(0, 10, 10)

    def losses(num_devices):
        tower, wide = conv_net(num_devices)
        features = cn.parallel(tower, devices=num_devices)

        def loss(images, labels):
            return cn.width.softmax_cross_entropy(labels, wide(features(images)))

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=1)
        found = [trainer.train_on_batch(images, labels).loss for _ in range(4)]
        return found, tf.function(loss)

    found, loss = losses(4)
    wanted, _ = losses(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    report = cn.placement(loss, images, labels)
    for op in ("Conv2D", "MatMul"):
        places = {row.actual for row in report.ops if plain(row.op) == op and "Fused" in row.op}
        assert places == {f"/device:CPU:{i}" for i in range(4)}


@pytest.mark.long
def test_work_on_a_device_has_its_gradient_there():
    x, y = tf.constant([2.0]), tf.constant([1, 2])

    def gradient(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = on("/device:CPU:3", lambda x, y: tf.sin(x) * tf.cast(y, tf.float32), x, y)
        return result, tape.gradient(result, x)

    report = cn.placement(gradient, x, y)
    assert {row.actual for row in report.ops if row.op in ("Sin", "Cos")} == {"/device:CPU:3"}
    np.testing.assert_allclose(gradient(x, y)[1], 3 * np.cos([2.0]), rtol=1e-6)


def test_activations_of_single_elements_may_be_any_function():
    x = tf.random.stateless_normal([4, 3], (1, 2))
    for activation in (tf.nn.relu, keras.layers.LeakyReLU(), lambda v: v * tf.sigmoid(v)):
        layer = cn.width.Dense(5, activation, devices=2)
        found = layer(x)
        np.testing.assert_allclose(found, activation(x @ layer.kernel.numpy()), rtol=1e-5, atol=1e-6)
